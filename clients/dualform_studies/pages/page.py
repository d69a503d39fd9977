"""A report as a page: headings, paragraphs, figures and tables in reading order.

page = Page(run, "Single task: MNIST")
page.paragraph("Text; `code` in backticks.")
page.figure(path, "Attention weights (Figure 4 of the paper).")
page.table("table-1", "Table 1 …", ["layer", "Yes"], [["0", "75.1"]])
page.write(report)                                   report.json, index.html, index.md, table-1.md, table-1.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform_studies.pages.folder import Report, report_folder, write_report
from dualform_studies.pages.html import page_html
from dualform_studies.pages.items import Cell, Figure, Heading, Item, Paragraph, Table
from dualform_studies.pages.machine import describe_machine, threads, versions_of
from dualform_studies.pages.markdown import page_markdown, table_markdown

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
