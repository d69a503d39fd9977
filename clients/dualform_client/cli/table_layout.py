"""How a table fits a width: which of its columns are shown, and where their cells are broken. Nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from dualform_client.cli.importance import Importance

GAP = 3
"""Columns of the terminal between two of the table."""
_ROOMY = 24
"""Below which texts are not broken while there are columns that may go instead."""
_NARROW = 10
"""Below which no text is broken: then each row is a list of its columns."""
_SHORT_NAME = 7
"""Of a column of numbers: not broken."""
_ENDS_OF_PARTS = " .,/_-:"
"""A text is broken behind one of these, where it can be."""


@dataclass(frozen=True)
class Column:
    """One of a table."""

    name: str
    cells: Sequence[str]
    numeric: bool
    """Numbers stand to the right, and are never broken."""

    @property
    def whole(self) -> int:
        """The width without which something is broken."""
        return max(map(cell_len, (self.name, *self.cells)), default=0)

    def least(self, narrowest: int) -> int:
        """The width down to which it may be made: texts to `narrowest`, and the name of numbers, too, if need be."""
        floor = narrowest
        if self.numeric:
            floor = min(narrowest, max(_SHORT_NAME, *(cell_len(part.rstrip()) for part in _parts(self.name))))
        unbroken = max(map(cell_len, self.cells), default=0) if self.numeric else 0
        return max(unbroken, min(self.whole, floor))


@dataclass(frozen=True)
class Layout:
    """A table of columns of some widths, or, where there is no room for them, rows that are lists of all columns."""

    columns: Sequence[Column]
    widths: Sequence[int] | None
    """None for rows that are lists."""
    left_out: Sequence[str] = ()
    """In the order of the table."""


def laid_out(columns: Sequence[Column], width: int, importance: Importance) -> Layout:
    """The table in so many columns of a terminal."""
    wholes = [column.whole for column in columns]
    if _total(wholes) <= width:
        return Layout(columns, wholes)
    shown = list(columns)
    for leaving in (None, *_leaving(columns, importance)):
        shown = [column for column in shown if column is not leaving]
        # What was asked for is not broken for the sake of others where half of the width is enough for it.
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
    """Those that may go, in that order."""
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
    """What is left of the width goes to the narrowest columns that have something to break, one at a time."""
    widths = list(least)
    while (room := width - _total(widths)) > 0:
        short = [place for place, own in enumerate(widths) if own < whole[place]]
        if not short:
            break
        for place in sorted(short, key=lambda place: widths[place])[:room]:
            widths[place] += 1
    return widths


def broken(text: str, width: int) -> list[str]:
    """The lines of a text, none wider than that; joined, they are the text, less spaces at the ends of lines."""
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
    """Its parts, each with what ends it."""
    start = 0
    for place, letter in enumerate(text, 1):
        if letter in _ENDS_OF_PARTS and (place == len(text) or text[place] not in _ENDS_OF_PARTS):
            yield text[start:place]
            start = place
    if start < len(text):
        yield text[start:]
