"""Tables: which columns fit a width, where cells are wrapped, and how tables are drawn. No cell is cut off."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich import box
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dualform.answers.table import counted
from dualform_client.cli.printing import Importance, print_line, printable

UNBOUNDED = 10_000
"""The width for a file or a pipe, where no table is cut."""
SHOWN_ROWS = 1000
"""Rows of a table that are printed; laying out more takes seconds."""
GAP = 3
"""Characters between two columns."""
_ROOMY = 24
"""Texts keep this width as long as other columns can be dropped."""
_NARROW = 10
"""Texts keep this width in any case; below it each row becomes a list of its columns."""
_SHORT_NAME = 7
"""The name of a column of numbers keeps this width."""
_ENDS_OF_PARTS = " .,/_-:"
"""Texts are wrapped after one of these if possible."""


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
        return max(map(cell_len, (self.name, *self.cells)), default=0)

    def least(self, narrowest: int) -> int:
        """The least width: texts, and the name of a column of numbers, may shrink to `narrowest`."""
        floor = narrowest
        if self.numeric:
            floor = min(narrowest, max(_SHORT_NAME, *(cell_len(part.rstrip()) for part in _parts(self.name))))
        unbroken = max(map(cell_len, self.cells), default=0) if self.numeric else 0
        return max(unbroken, min(self.whole, floor))


@dataclass(frozen=True)
class Layout:
    """The columns of a table with their widths, or rows as lists of all columns if those do not fit."""

    columns: Sequence[Column]
    widths: Sequence[int] | None
    """None if rows are lists."""
    left_out: Sequence[str] = ()
    """The dropped columns, in the order of the table."""


def laid_out(columns: Sequence[Column], width: int, importance: Importance) -> Layout:
    """The layout for a terminal of this width."""
    wholes = [column.whole for column in columns]
    if _total(wholes) <= width:
        return Layout(columns, wholes)
    shown = list(columns)
    for leaving in (None, *_leaving(columns, importance)):
        shown = [column for column in shown if column is not leaving]
        # Kept columns are not wrapped for the sake of others if half of the width is enough.
        kept = max(_ROOMY, width // 2)
        least = [column.least(kept if column.name in importance.kept else _ROOMY) for column in shown]
        if _total(least) <= width:
            break
    else:
        least = [column.least(_NARROW) for column in shown]
    if _total(least) > width:
        return Layout(columns, None)
    names = {column.name for column in shown}
    left_out = [column.name for column in columns if column.name not in names]
    return Layout(shown, _widened(least, [column.whole for column in shown], width), left_out)


def _leaving(columns: Sequence[Column], importance: Importance) -> list[Column]:
    """The columns that may be dropped, in that order."""
    places = {column.name: place for place, column in enumerate(columns)}

    def order(column: Column) -> tuple[int, int]:
        if all(cell in ("", "-") for cell in column.cells):
            return 0, -places[column.name]
        if column.name in importance.first:
            return 1, importance.first.index(column.name)
        if column.name in importance.last:
            return 3, -importance.last.index(column.name)
        return 2, -places[column.name]

    return sorted((column for column in columns if column.name not in importance.kept), key=order)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widened(least: list[int], whole: list[int], width: int) -> list[int]:
    """Gives the rest of the width to the narrowest columns that are wrapped, one character at a time."""
    widths = list(least)
    while (room := width - _total(widths)) > 0:
        short = [place for place, own in enumerate(widths) if own < whole[place]]
        if not short:
            break
        for place in sorted(short, key=lambda place: widths[place])[:room]:
            widths[place] += 1
    return widths


def broken(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than `width`; joined, they are the text without spaces at the ends of lines."""
    lines = [""]
    for part in _parts(text):
        if cell_len((lines[-1] + part).rstrip(" ")) <= width:
            lines[-1] += part
        elif cell_len(part.rstrip(" ")) <= width:
            lines.append(part)
        else:
            *full, rest = chop_cells(lines.pop() + part, width)
            lines += [*full, rest]
    return [line.rstrip(" ") for line in lines]


def _parts(text: str) -> Iterator[str]:
    """The parts of a text, each with the character that ends it."""
    start = 0
    for place, letter in enumerate(text, 1):
        if letter in _ENDS_OF_PARTS and (place == len(text) or text[place] not in _ENDS_OF_PARTS):
            yield text[start:place]
            start = place
    if start < len(text):
        yield text[start:]


def show(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], importance: Importance | None = None
) -> None:
    """As `print_table`."""
    cells = [list(row) for row in rows]
    if len(cells) > SHOWN_ROWS:
        title, cells = f"{title} · first {SHOWN_ROWS:,} (--json prints all)", cells[:SHOWN_ROWS]
    table = [
        Column(_in_one_line(name), [_cell(row[place]) for row in cells], any(_is_number(row[place]) for row in cells))
        for place, name in enumerate(columns)
    ]
    # rich heeds a width of dumb terminals only where it has a height, too; nothing here depends on that.
    width, height = shutil.get_terminal_size() if sys.stdout.isatty() else (UNBOUNDED, 25)
    layout = laid_out(table, width, importance or Importance(kept=[column.name for column in table]))
    print_line(title)
    if layout.widths is None:
        _print_lists(layout, width)
        return
    _print_rows(layout, layout.widths, Console(file=sys.stdout, width=width, height=height))
    if left := layout.left_out:
        print_line(f"{counted(len(left), 'column')} left out: {', '.join(left)} (a pipe and --json have all)\n")


def _print_rows(layout: Layout, widths: Sequence[int], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width in zip(layout.columns, widths, strict=True):
        name = Text("\n".join(broken(column.name, width)))
        table.add_column(name, justify="right" if column.numeric else "left", width=width, no_wrap=True)
    for row in zip(*(column.cells for column in layout.columns), strict=True):
        table.add_row(*(Text("\n".join(broken(cell, width))) for cell, width in zip(row, widths, strict=True)))
    console.print(table)
    console.print()


def _print_lists(layout: Layout, width: int) -> None:
    """Prints each row as lines of a name and a value, wrapped if they are too wide."""
    names = [column.name for column in layout.columns]
    for_names = max(min(max(map(cell_len, names)), width // 2), 1)
    for_cells = max(width - for_names - 2, 1)
    for row in zip(*(column.cells for column in layout.columns), strict=True):
        for name, cell in zip(names, row, strict=True):
            for one, other in zip_longest(broken(name, for_names), broken(cell, for_cells), fillvalue=""):
                print_line(f"{set_cell_size(one, for_names)}  {other}".rstrip())
        print_line("")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else _in_one_line(str(value))


def _in_one_line(text: str) -> str:
    """As `printable`, for cells: a new line could pass for another row."""
    return printable(text).replace("\n", "\N{REPLACEMENT CHARACTER}")
