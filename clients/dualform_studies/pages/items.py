"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dualform_studies.pages.folder import Report


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
