"""Pages of docs/ whose examples are run as a reader runs them: the marked blocks of a page are one script of the shell.

After `<!-- tested -->` a block of Python or of the shell is run; after `<!-- tested: NAME -->` it is saved as NAME. A
block of `text` shows what was printed.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *(DOCS / f"{name}.md" for name in ("start", "concepts", "recording", "errors")),
    *sorted((DOCS / "howto").glob("*.md")),
]
BLOCK = re.compile(r"^(?:<!-- tested(?:: ([\w.]+))? -->\n)?```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "<!-- tested"
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


def script(page: Path) -> str:
    """The blocks of a page, in its order."""
    return "\n".join(["set -euo pipefail", *(_part(*found) for found in BLOCK.findall(page.read_text("utf-8")))])


def shown_but_not_printed(page: Path, printed: str) -> list[str]:
    """Lines that the page shows and its script does not print. Numbers and the width of columns may differ."""
    found = {_words(line) for line in printed.splitlines()}
    shown = [line for block in SHOWN.findall(page.read_text("utf-8")) for line in block.splitlines()]
    return [line for line in shown if _words(line) not in found and line.strip() != "…"]


def _words(line: str) -> str:
    # NumPy pads the numbers of an array to one width, next to its brackets too.
    return " ".join(NUMBER.sub("#", line).replace("[", "[ ").replace("]", " ]").split())


def _part(name: str, language: str, code: str) -> str:
    if language == "bash" and not name:
        return code
    command = f"cat > {name}" if name else "python -"
    return f"{command} <<'END_OF_BLOCK'\n{code}END_OF_BLOCK"
