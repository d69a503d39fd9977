"""A lint of prose: turns of phrase that read as translated, and words that dualform no longer uses.

    python -m docs.site.prose [PAGE…]

lists each with its page and line. It fails if a page has more than MOST turns in a thousand words, or one old word
outside of code. The docstrings of all objects that docs/api.md lists count as one page.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import cleandoc, getsource, unwrap
from math import ceil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST = 3
TURNS = {
    "noun clause": r"(?:^|[.;:,] )[Ww]hat (?:a|an|the|is|it|they|was|this|that|has|no|comes|one|of|each)\b"
    r"|\b(?:[Ww]ho|[Ww]hat|[Ww]hich)ever\b",
    "where for if or when": r"(?:^|[.,;:] )[Ww]here (?:it|there|they|one|a|an|the|no|nothing|that|this|its|all|each"
    r"|several|his|nobody)\b",
    "of one's own": r"\bof (?:one's|your|its|their|our) own\b|\bof (?:yours|ours|theirs)\b",
    "is said, is told": r"\b(?:is|are|was|were|be) (?:said|told|asked|spoken)\b|\bsays? (?:of|so|it)\b"
    r"|\bis (?:given|taken) (?:by|of)\b",
    "beside, behind": r"\b(?:beside|behind)\b",
    "alone for only": r"\b\w+ alone\b",
    "that of, likewise": r"\b(?:is|are) (?:that|those) of\b|\blikewise\b|\ball the same\b",
    "is no X": r"\b(?:is|are|was|were|has|have) (?:no|none|nothing)\b",
    "fronted Of": r"(?:^|[.!?] )Of (?:a|an|the|several|what|those|each|all|more|such|one)\b",
    "archaic": r"\b(?:mend(?:s|ed|ing)?|anew|kin|foresee\w*|parted|whence|thereof|lest|forthwith|dearest?)\b",
    "stands, lies for is": r"\b(?:stands?|stood|lies?) (?:in|on|at|beside|behind|there|where|by|for)\b",
}
OLD = {
    "query set": r"\bprob(?:es?|ed|ing)\b",
    "target": r"\btoward\b",
    "rerun": r"\breplay(?:s|ed|ing)?\b",
    "delete": r"\bdualform forget\b|\bforgets? samples\b|\bforgotten (?:samples|slots)\b",
    "dot": r"\bsigned (?:scores?|sums?|attention|weights?)\b",
    "status, reconstruction error": r"\bgrade[sd]?\b|\bcertif(?:y|ies|ied)\b|\boff by\b(?! default)",
    "unrecorded change": r"\bstanding\b",
    "previews": r"\bgaller(?:y|ies)\b|\bappearances?\b",
    "filter, ablation": r"(?<!padding )(?<!boolean )\bmask(?:s|ed|ing)?\b",
}
"""By the word to use."""
RESULTS = ("results", "decisions", "reproduction", "benchmarks", "attribution", "coverage", "reliability")
_CODE = re.compile(r"^```.*?^```|<!--.*?-->|``.+?``|`[^`]*`", re.DOTALL | re.MULTILINE)


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that people read; results are generated, and decisions are for maintainers."""
    docs = sorted((root / "docs").rglob("*.md"))
    read = [page for page in docs if page.relative_to(root / "docs").with_suffix("").parts[0] not in RESULTS]
    return [*(root / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *read]


def faults(text: str) -> tuple[list[str], list[str], int]:
    """Turns and old words, each with its line, and the number of words."""
    turns, old, words = list[str](), list[str](), 0
    bare = _CODE.sub(lambda code: "\n" * code.group().count("\n"), text)
    for number, line in enumerate(bare.split("\n"), 1):
        if line.startswith("    "):
            continue
        old += [f"{number}: {found!r}: write {use}" for use, found in _found(OLD, line)]
        if not line.startswith(("|", "#")):
            words += len(line.split())
            turns += [f"{number}: {turn}: {found.strip()}" for turn, found in _found(TURNS, line)]
    return turns, old, words


def _found(patterns: dict[str, str], line: str) -> Iterator[tuple[str, str]]:
    return ((name, found.group()) for name, pattern in patterns.items() for found in re.finditer(pattern, line))


def docstrings(root: Path = ROOT) -> dict[str, str]:
    """By object that docs/api.md lists, and by its bases: the docstrings of it and of its public methods and fields."""
    found: dict[str, str] = {}
    for name in re.findall(r"^::: (\S+)", (root / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        listed: Any = unwrap(getattr(import_module(module), attribute))
        for own in listed.__mro__ if isinstance(listed, type) else (listed,):
            if own.__module__.startswith("dualform"):
                found[f"{own.__module__}.{own.__qualname__}"] = "\n\n".join(_texts(own))
    return found


def _texts(documented: Any) -> Iterator[str]:
    node: Any = _tree(documented.__module__)
    for name in documented.__qualname__.split("."):
        node = next(part for part in node.body if getattr(part, "name", None) == name)
    for part in (node, *node.body):
        if part is node or re.match("__init__|[^_]", getattr(part, "name", "_")):
            strings = (own.value.value for own in part.body if isinstance(getattr(own, "value", None), ast.Constant))
            yield from (cleandoc(text) for text in strings if isinstance(text, str))


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(getsource(import_module(module)))


def main(named: list[str]) -> int:
    read = {str(page): page.read_text(encoding="utf-8") for page in [Path(name) for name in named] or pages()}
    wrong = [_tell(page, {page: text}, always=bool(named)) for page, text in read.items()]
    return int(any(wrong) or (not named and _tell("docstrings", docstrings())))


def _tell(what: str, texts: Mapping[str, str], *, always: bool = False) -> bool:
    """Whether texts together have too many faults. If they do, or `always`, each fault is listed."""
    found = {place: faults(text) for place, text in texts.items()}
    turns, old = (sum(len(own[0]) for own in found.values()), sum(len(own[1]) for own in found.values()))
    words = sum(own[2] for own in found.values())
    wrong = old > 0 or turns > ceil(MOST * words / 1000)
    for place, (some, others, _) in found.items() if wrong or always else ():
        sys.stdout.writelines(f"{place}:{fault}\n" for fault in [*others, *some])
    if wrong:
        sys.stdout.write(f"{what}: {old} old words, {turns} turns in {words} words\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
