"""A study's report: report.json, and a page of figures, claims and tables.

page = Page(run, "Single task: MNIST")
page.figure(path, "Attention weights (Figure 4 of the paper).")
page.paragraph("Text; `code` in backticks.")
page.table("table-1", "Table 1 …", ["layer", "Yes"], [["0", "75.1"]])
page.write(report)                                                     report.json, index.html
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dualform.errors import AlreadyExists
from dualform.store.files.ram_budget import memory_bytes

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

    def __html__(self) -> str:
        return f"{escape(self.before)}<mark>{escape(self.token)}</mark>{escape(self.after)}"


Cell: TypeAlias = str | int | float | MarkedPassage | None


@dataclass(frozen=True)
class Item:
    """A heading, a paragraph, or a figure with its caption."""

    kind: str
    text: str
    name: str = ""
    """Of a figure's two files in the report's folder: NAME.png and NAME.svg."""

    @property
    def anchor(self) -> str:
        """What a link to a heading says after its #."""
        return re.sub(r"\W+", "-", self.text.lower()).strip("-")


@dataclass(frozen=True)
class Table:
    kind = "table"
    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether it is one of numbers, which stand to the right: each cell is one, or is empty."""
        columns = ([row[at] for row in self.rows] for at in range(len(self.columns)))
        filled = ([cell for cell in column if cell not in (None, "", "-")] for column in columns)
        return [
            bool(cells) and all(isinstance(cell, int | float) or _NUMBER.fullmatch(str(cell)) for cell in cells)
            for cells in filled
        ]

    def plain(self) -> Report:
        """The table in values that JSON has; a marked passage is a text with its token in brackets."""
        rows = [[str(cell) if isinstance(cell, MarkedPassage) else cell for cell in row] for row in self.rows]
        return {"name": self.name, "caption": self.caption, "columns": list(self.columns), "rows": rows}


_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ± \d+(\.\d+)?)?( %)?")


def percent(share: float, form: str = ".1f") -> str:
    """A share of 1 in per cent, its number in the given form: "97.4 %"."""
    return f"{100 * share:{form}} %"


def in_fraction(share: float) -> str:
    """A share as a fraction of small numbers, as "2/3"."""
    return str(Fraction(share).limit_denominator(100))


def in_words(cell: Cell) -> str:
    """Whole numbers with thousands apart, others with up to six digits, nothing as a hyphen."""
    if cell is None:
        return "-"
    if isinstance(cell, bool | str | MarkedPassage):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.6g}"


def describe_machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory_bytes() / 1e9:.0f} GB",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none at hand",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
    }


def _processor() -> str:
    """The model, and those of its instructions that matrix products live on."""
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    model, flags = (re.search(rf"{name}\s*:\s*(.+)", text) for name in ("model name", "flags"))
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    present = [word for flag, word in known.items() if flags and flag in flags.group(1).split()]
    name = model.group(1) if model else platform.processor() or platform.machine()
    return f"{name} ({', '.join(present) or 'no wide vectors'})"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def peak_bytes() -> int:
    """The most memory that this process has held so far, what files back included; 0 where the system does not say."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found.group(1)) if found else 0
    return 0


_CODE = re.compile(r"(`[^`]+`)")


def table_markdown(table: Table) -> str:
    """The table with its caption above."""
    rows = [table.columns, ["---:" if number else "---" for number in table.numeric]]
    rows += [[_markdown(in_words(cell)) for cell in row] for row in table.rows]
    return "\n".join([table.caption, "", *(f"| {' | '.join(row)} |" for row in rows)])


def _markdown(text: str) -> str:
    """Text that a table's cell can hold: one line, without what Markdown would take for markup.

    What stands in backticks stays code. There a backslash would be shown, but for the one before a bar, which the table
    takes away.
    """
    return "".join(
        part.replace("|", r"\|") if at % 2 else re.sub(r"([\\|*_<>\[\]`])", r"\\\1", part)
        for at, part in enumerate(_CODE.split(re.sub(r"\s*\n\s*", " ", text)))
    )


def page_html(title: str, report: Report, items: Sequence[Item | Table]) -> str:
    """The whole document. It names the report's "command" and "machine"."""
    templates = Environment(
        loader=PackageLoader("dualform_studies"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.filters |= {"code": _code}
    return templates.get_template("report.html").render(title=title, report=report, items=items)


def _code(cell: Cell) -> Markup:
    """Escaped, and what stands in backticks as code; a marked passage with its mark."""
    if isinstance(cell, MarkedPassage):
        return escape(cell)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(in_words(cell)))))


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
        self.items: list[Item | Table] = []

    def heading(self, text: str) -> None:
        self.items.append(Item("heading", text))

    def paragraph(self, text: str) -> None:
        """`text` may hold `code` in backticks, and nothing else that is marked up."""
        self.items.append(Item("paragraph", text))

    def figure(self, path: Path, caption: str) -> None:
        """Show a figure that `new_figure` saved into the report's folder."""
        self.items.append(Item("figure", caption, path.stem))

    def table(self, name: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self.show(Table(name, caption, columns, rows))

    def show(self, *items: Item | Table) -> None:
        """Add items that were made elsewhere."""
        self.items += items

    def write(self, report: Report) -> Path:
        """Write everything into the report's folder and return the path of index.html.

        The page names the report's "command". Its "claims" and what stands "beside_paper" come after the first figure,
        its "verify" and "cancellation" at the end. The report takes its tables along, and the machine and the versions
        that its figures belong to.
        """
        # A page that is made again tells of the machine that its figures came from.
        # With another number of threads, the last bits of a training differ.
        threads = {"threads": str(torch.get_num_threads())}
        report.setdefault("machine", describe_machine() | threads | versions_of(_PACKAGES))
        kinds = [item.kind for item in self.items]
        first = kinds.index("figure") + 1 if "figure" in kinds else 0
        if report.get("beside_paper"):
            self.items.insert(first, beside_table(report["beside_paper"]))
        if report.get("claims"):
            self.items.insert(first, claims_table(report["claims"]))
        if report.get("verify"):
            self.show(Item("heading", "The reconstruction error"), reconstruction_table(report))
        report["tables"] = [item.plain() for item in self.items if isinstance(item, Table)]
        folder = write_report(self.run, report).parent
        index = folder / "index.html"
        index.write_text(page_html(self.title, report, self.items), encoding="utf-8")
        return index


def claims_table(claims: Sequence[Report]) -> Table:
    """The claims of one study, with their criteria."""
    columns = ("section", "claim", "paper", "ours", "criterion", "verdict")
    return Table(
        "claims",
        "What the paper observes, put to the test. Each criterion is taken from the paper's words, and the verdict is "
        "computed from it and from what was measured.",
        columns,
        [[one[column] for column in columns] for one in claims],
    )


def beside_table(rows: Sequence[Report]) -> Table:
    """Figures beside the paper's; rows may have the name of the study that they are from."""
    columns = {"study": "study", "what": "figure", "ours": "here", "text": "the paper's text"}
    columns |= {"code": "the paper's code, run again"}
    shown = {key: column for key, column in columns.items() if key in rows[0]}
    cells = [[row[key] or "-" for key in shown] for row in rows]
    return Table("beside", "Figures measured here and in the paper.", tuple(shown.values()), cells)


def reconstruction_table(report: Report) -> Table:
    """How far each layer's rebuilt weights are from those trained, and how far the terms of the report's "mask" cancel,
    or all terms where there is none.
    """
    rows: list[list[Cell]] = [
        [layer, f"{found['reconstruction_error']:.2g}", "yes" if found["exact"] else found["reason"]]
        for layer, found in report["verify"].items()
    ]
    caption = "The reconstruction error: ‖W - rebuilt‖ / ‖W - W₀‖ of each layer"
    if "cancellation" not in report:
        return Table("reconstruction", f"{caption}.", ("layer", "relative error", "exact"), rows)
    for row, cancelled in zip(rows, report["cancellation"].values(), strict=True):
        row.append("-" if cancelled is None else f"{cancelled:.0f}")
    of_what = f"the terms that the mask `{report['mask']}` leaves out" if "mask" in report else "all its terms"
    caption += f"; and the cancellation of {of_what}, the sum of their norms over the norm of their sum."
    return Table("reconstruction", caption, ("layer", "relative error", "exact", "cancellation"), rows)
