"""A study's report: report.json, and a page of headings, paragraphs, figures and tables in Markdown and HTML.

A report as a page: headings, paragraphs, figures and tables in reading order.

page = Page(run, "Single task: MNIST")
page.paragraph("Text; `code` in backticks.")
page.figure(path, "Attention weights (Figure 4 of the paper).")
page.table("table-1", "Table 1 …", ["layer", "Yes"], [["0", "75.1"]])
page.write(report)                                   report.json, index.html, index.md, table-1.md, table-1.json
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from dualform.errors import AlreadyExists
from dualform.store.machine_memory import memory_bytes

Report: TypeAlias = dict[str, Any]
"""Plain values only, ready for JSON."""


def report_folder(run: Path) -> Path:
    return run / "report"


def check_free(run: Path) -> None:
    """Raise AlreadyExists where the folder holds anything: found out before the training, not after it."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        study = study_of(run)
        what = f"the study {study}" if study else "something"
        raise AlreadyExists(
            f"{run} already contains {what}.", hint="Pass another folder with --out, or remove this one."
        )


def write_report(run: Path, report: Report) -> Path:
    path = report_folder(run) / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return written.replace(path)


def study_of(run: Path) -> str | None:
    """The study that left this folder behind, None where none did."""
    try:
        report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(report["study"]) if isinstance(report, dict) and "study" in report else None


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class MarkedPassage:
    """A passage of text in which one token stands out."""

    before: str
    token: str
    after: str

    def __str__(self) -> str:
        return f"{self.before}[{self.token}]{self.after}"


Cell: TypeAlias = str | int | float | MarkedPassage | None


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Figure:
    name: str
    """Of its two files in the report's folder: NAME.png and NAME.svg."""
    caption: str


@dataclass(frozen=True)
class Table:
    name: str
    """Of its two files in the report's folder: NAME.md and NAME.json."""
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def plain(self) -> Report:
        """The table in values that JSON has; a marked passage is a text with its token in brackets."""
        rows = [[str(cell) if isinstance(cell, MarkedPassage) else cell for cell in row] for row in self.rows]
        return {"name": self.name, "caption": self.caption, "columns": list(self.columns), "rows": rows}


Item: TypeAlias = Heading | Paragraph | Figure | Table


_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ± \d+(\.\d+)?)?( %)?")
_NOTHING = ("", "-")


def percent(share: float, form: str = ".1f") -> str:
    """A share of 1 in per cent, its number in the given form: "97.4 %"."""
    return f"{100 * share:{form}} %"


def in_fraction(share: float) -> str:
    """A share as a fraction of small numbers, as "2/3"."""
    return str(Fraction(share).limit_denominator(100))


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: "a", "a and b", "a, b and c"; empty without any."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def anchor(heading: str) -> str:
    """What a link to a heading of a page says after its #."""
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


def in_words(cell: str | int | float | None) -> str:
    """Whole numbers with thousands apart, others with up to six digits, nothing as a hyphen."""
    if cell is None:
        return "-"
    if isinstance(cell, bool | str):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.6g}"


def are_numbers(cells: Iterable[object]) -> bool:
    """Whether a column is one of numbers, which stand to the right: each cell is one, also in words, or is empty."""
    told = [cell for cell in cells if cell is not None and cell not in _NOTHING]
    return bool(told) and all(isinstance(cell, int | float) or _is_number(cell) for cell in told)


def _is_number(cell: object) -> bool:
    return isinstance(cell, str) and _NUMBER.fullmatch(cell) is not None


def describe_machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory_bytes() / 1e9:.0f} GB",
        "GPU": _gpu(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
    }


def threads() -> dict[str, str]:
    """How many torch computes on: with another number, the last bits of a training differ."""
    import torch

    return {"threads": str(torch.get_num_threads())}


def peak_bytes() -> int:
    """The most memory that this process has held so far, what files back included; 0 where the system does not say."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found.group(1)) if found else 0
    return 0


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The model, and those of its instructions that matrix products live on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"model name\s*:\s*(.+)", text)
    flags = re.search(r"flags\s*:\s*(.+)", text)
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    present = [word for flag, word in known.items() if flags and flag in flags.group(1).split()]
    return f"{model.group(1) if model else platform.machine()} ({', '.join(present) or 'no wide vectors'})"


def _gpu() -> str:
    try:
        import torch
    except ImportError:
        return "none at hand"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none at hand"


_UNFOLDED = 40
"""Rows of the longest table that is shown as it is."""
_CODE = re.compile(r"(`[^`]+`)")


def page_markdown(title: str, items: Sequence[Item]) -> str:
    return "\n\n".join([f"# {title}", *map(_item, items)]) + "\n"


def table_markdown(table: Table, *, folded: bool = True) -> str:
    """The table with its caption above; a long one is folded, so that its rows are shown when its caption is clicked.

    With `folded` false it is shown whole however long it is.
    """
    rows = [list(table.columns), [_rule(table, at) for at in range(len(table.columns))]]
    rows += [[_cell(cell) for cell in row] for row in table.rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    if not folded or len(table.rows) <= _UNFOLDED:
        return f"{table.caption}\n\n{lines}"
    # What stands in HTML is not read as Markdown.
    caption = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(table.caption, quote=False))
    return f"<details><summary>{caption} ({len(table.rows)} rows)</summary>\n\n{lines}\n\n</details>"


def _item(item: Item) -> str:
    match item:
        case Heading(text):
            return f"## {text}"
        case Paragraph(text):
            return text
        case Figure(name, caption):
            return f"![{caption.replace('[', '(').replace(']', ')')}]({name}.png)\n\n*{caption}*"
        case Table():
            return table_markdown(item)


def _rule(table: Table, at: int) -> str:
    return "---:" if are_numbers(row[at] for row in table.rows) else "---"


def _cell(cell: Cell) -> str:
    if isinstance(cell, MarkedPassage):
        # Markdown knows no emphasis that begins or ends with a space; a token that is one is named instead.
        token = cell.token.strip()
        lead, tail = cell.token[: len(cell.token) - len(cell.token.lstrip())], cell.token[len(cell.token.rstrip()) :]
        bold = f"{lead}**{_plain(token)}**{tail}" if token else " **␣** "
        return f"{_plain(cell.before)}{bold}{_plain(cell.after)}"
    return _plain(in_words(cell), code=True)


def _plain(text: str, code: bool = False) -> str:
    """Text that a table's cell can hold: one line, without what Markdown would take for markup.

    With `code`, what stands in backticks stays code. There a backslash would be shown, but for the one before a bar,
    which the table takes away.
    """
    line = re.sub(r"\s*\n\s*", " ", text)
    parts = _CODE.split(line) if code else [line]
    return "".join(
        part.replace("|", r"\|") if at % 2 else re.sub(r"([\\|*_<>\[\]`])", r"\\\1", part)
        for at, part in enumerate(parts)
    )


_STYLE = """
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 58rem; color: #222; background: #fff;
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { margin-top: 2.6rem; padding-bottom: .2rem; border-bottom: 1px solid #ddd; font-size: 1.25rem; }
code { padding: .1em .3em; border-radius: 3px; background: #f3f3f3; font-size: .92em; }
figure { margin: 1.6rem 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; }
.table div { padding-top: .4rem; overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; }
.number { text-align: right; white-space: nowrap; }
mark { padding: 0 .1em; background: #ffe08a; font-weight: 600; }
nav { font-size: .9rem; }
nav a { margin-right: 1rem; }
"""


def page_html(title: str, items: Sequence[Item]) -> str:
    """The whole document. Headings get anchors, and a line of links at the top."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", *_links(items), *(_html_item(item) for item in items)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _links(items: Sequence[Item]) -> Iterator[str]:
    headings = [item.text for item in items if isinstance(item, Heading)]
    if headings:
        yield "<nav>" + "".join(f'<a href="#{anchor(text)}">{escape(text)}</a>' for text in headings) + "</nav>"


def _html_item(item: Item) -> str:
    match item:
        case Heading(text):
            return f'<h2 id="{anchor(text)}">{escape(text)}</h2>'
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Figure(name, caption):
            return (
                f'<figure><a href="{name}.svg"><img src="{name}.png" alt="{escape(caption)}"></a>\n'
                f"<figcaption>{_text(caption)}</figcaption></figure>"
            )
        case Table():
            return _table(item)


def _table(table: Table) -> str:
    numeric = [are_numbers(row[at] for row in table.rows) for at in range(len(table.columns))]
    kinds = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for kind, column in zip(kinds, table.columns, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{_html_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<figure class="table"><figcaption>{_text(table.caption)}</figcaption>\n'
        f"<div><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></figure>"
    )


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, MarkedPassage):
        return f"{escape(cell.before)}<mark>{escape(cell.token)}</mark>{escape(cell.after)}"
    return _text(in_words(cell))


def _text(text: str) -> str:
    """Escaped, and `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


_PACKAGES = (
    "dualform",
    "torch",
    "numpy",
    "duckdb",
    "faiss-cpu",
    "faiss-gpu",
    "tokenizers",
    "matplotlib",
    "captum",
    "dattri",
)


class Page:
    """What a study tells its reader, collected while it runs."""

    def __init__(self, run: Path, title: str) -> None:
        self.run, self.title = run, title
        self.items: list[Item] = []

    def heading(self, text: str) -> None:
        self.items.append(Heading(text))

    def paragraph(self, text: str) -> None:
        """`text` may hold `code` in backticks, and nothing else that is marked up."""
        self.items.append(Paragraph(text))

    def figure(self, path: Path, caption: str) -> None:
        """Show a figure that `new_figure` saved into the report's folder."""
        for suffix in (".png", ".svg"):
            assert (report_folder(self.run) / path.name).with_suffix(suffix).is_file(), f"{path.stem}{suffix} is drawn"
        self.items.append(Figure(path.stem, caption))

    def table(self, name: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self.show(Table(name, caption, columns, rows))

    def show(self, *items: Item) -> None:
        """Add items that were made elsewhere."""
        for item in items:
            if isinstance(item, Table):
                assert item.name not in [table.name for table in self.tables()], f"one table {item.name}"
                assert all(len(row) == len(item.columns) for row in item.rows), f"rows as wide as {item.name}'s header"
            self.items.append(item)

    def tables(self) -> list[Table]:
        return [item for item in self.items if isinstance(item, Table)]

    def write(self, report: Report) -> Path:
        """Write everything into the report's folder and return the path of index.html.

        The page names the report's "command". The report takes its tables along, and the machine and the versions that
        its figures belong to.
        """
        # A page that is made again tells of the machine that its figures came from.
        report.setdefault("machine", describe_machine() | threads() | versions_of(_PACKAGES))
        items = [*_provenance(report), *self.items]
        report["tables"] = [table.plain() for table in self.tables()]
        folder = write_report(self.run, report).parent
        for table in self.tables():
            (folder / f"{table.name}.json").write_text(json.dumps(table.plain(), indent=2) + "\n", encoding="utf-8")
            (folder / f"{table.name}.md").write_text(table_markdown(table) + "\n", encoding="utf-8")
        (folder / "index.md").write_text(page_markdown(self.title, items), encoding="utf-8")
        index = folder / "index.html"
        index.write_text(page_html(self.title, items), encoding="utf-8")
        # After the writing: a training is not lost for the want of a link.
        headings = [item.text for item in self.items if isinstance(item, Heading)]
        for claim in report.get("claims", ()):
            assert claim["heading"] in headings, f"the evidence of a claim stands under {claim['heading']!r}"
        return index


def _provenance(report: Report) -> Iterator[Item]:
    """What the figures come from: the command and the machine."""
    yield Paragraph(f"Made by `{report['command']}`.")
    yield Paragraph("; ".join(f"{name} {value}" for name, value in report["machine"].items()) + ".")
