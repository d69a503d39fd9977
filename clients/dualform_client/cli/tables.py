"""Tables: which columns fit a width. rich draws and wraps them; no cell is cut off."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from dualform.answers.table import counted
from dualform_client.cli.printing import Importance, Table, print_line, printable

UNBOUNDED = 10_000
"""The width for a file or a pipe, where no table is cut."""
SHOWN_ROWS = 1000
"""Rows of a table that are printed; laying out more takes seconds."""
GAP = 3
"""Characters between two columns."""
_NARROW = 16
"""Texts keep this width; if even that does not fit, each row becomes lines of a name and a value."""
_SHORT_NAME = 7
"""The name of a column of numbers keeps this width."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    cells: Sequence[str]
    numeric: bool
    """Numbers are right-aligned and never wrapped."""

    @property
    def whole(self) -> int:
        """The width at which nothing is wrapped."""
        return max(map(cell_len, (self.name, *self.cells)))

    @property
    def least(self) -> int:
        if self.numeric:
            return max(min(cell_len(self.name), _SHORT_NAME), *map(cell_len, self.cells))
        return min(self.whole, _NARROW)


def fitting(columns: Sequence[Column], width: int, importance: Importance) -> Sequence[Column] | None:
    """The columns that a terminal of this width shows; None if not even those that are always kept fit."""
    shown = list(columns)
    for leaving in (None, *_leaving(columns, importance)):
        shown = [column for column in shown if column is not leaving]
        if _total(column.least for column in shown) <= width:
            return shown
    return None


def _leaving(columns: Sequence[Column], importance: Importance) -> list[Column]:
    """The columns that may be dropped, in that order."""
    empty = [column.name for column in columns if all(cell in ("", "-") for cell in column.cells)]
    unnamed = [column.name for column in reversed(columns) if column.name not in importance.last]
    order = dict.fromkeys([*empty, *importance.first, *unnamed, *reversed(importance.last)])
    named = {column.name: column for column in columns}
    return [named[name] for name in order if name in named and name not in importance.kept]


def _total(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def show(said: Table) -> None:
    """Prints a table."""
    title, cells = said.title, [list(row) for row in said.rows]
    if len(cells) > SHOWN_ROWS:
        title, cells = f"{title} · first {SHOWN_ROWS:,} (--json prints all)", cells[:SHOWN_ROWS]
    table = [
        Column(_in_one_line(name), [_cell(row[place]) for row in cells], any(_is_number(row[place]) for row in cells))
        for place, name in enumerate(said.columns)
    ]
    # rich heeds a width of dumb terminals only where it has a height, too; nothing here depends on that.
    width, height = shutil.get_terminal_size() if sys.stdout.isatty() else (UNBOUNDED, 25)
    console = Console(file=sys.stdout, width=width, height=height)
    shown = fitting(table, width, said.importance or Importance(kept=[column.name for column in table]))
    print_line(title)
    if shown is None:
        for row in zip(*(column.cells for column in table), strict=True):
            lines = [f"{column.name}: {cell}" for column, cell in zip(table, row, strict=True)]
            console.print(Text("\n".join(lines), overflow="fold"), end="\n\n")
        return
    console.print(_drawn(shown, wrapped=_total(column.whole for column in shown) > width))
    console.print()
    if left := [column.name for column in table if column not in shown]:
        print_line(f"{counted(len(left), 'column')} left out: {', '.join(left)} (a pipe and --json have all)\n")


def _drawn(columns: Sequence[Column], wrapped: bool) -> Drawing:
    drawn = Drawing(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        drawn.add_column(
            Text(column.name),
            justify="right" if column.numeric else "left",
            width=column.least if column.numeric and wrapped else None,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*map(Text, row))
    return drawn


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else _in_one_line(str(value))


def _in_one_line(text: str) -> str:
    """As `printable`, for cells: a new line could pass for another row."""
    return printable(text).replace("\n", "\N{REPLACEMENT CHARACTER}")
