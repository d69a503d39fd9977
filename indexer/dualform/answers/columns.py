"""A table, column by column, and how it is shown."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, SupportsIndex

import numpy as np
from numpy import ma
from numpy.typing import NDArray

from dualform.answers.scan import Scan
from dualform.extras import optional

SHOWN = 10
"""The number of rows that a table prints. If it has one or two more, it prints them too."""
_WIDEST = 60
"""Characters of a cell that are shown."""
WIDEST = 2**53 - 1
"""JavaScript rounds whole numbers beyond."""


class Html(str):
    """A cell that is HTML already. Only dualform.answers.html makes them; every other text is escaped."""


def escaped(text: str) -> str:
    """Text for HTML elements and attributes. All text from memories is escaped here."""
    return text if isinstance(text, Html) else escape(_plain(text))


def json_value(value: Any, widest: int | None = None) -> Any:
    """One value as JSON. JSON lacks NaN and infinities, so they become the texts "nan", "inf" and "-inf", which differ
    from NULL. Whole numbers beyond `widest` become text too, and so does any value that is not a number, text or
    boolean.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if widest is None or abs(value) <= widest else str(value)
    if value is None or isinstance(value, str | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table with one NumPy array for each column, all of one length.

    `columns["label"]` is a column, `len` counts rows, and iterating gives each row as a dict of plain Python values.
    Numbers and booleans with NULLs are `numpy.ma` arrays; texts are object arrays with None for NULL. pandas, polars
    and pyarrow can read it directly.
    """

    arrays: Mapping[str, NDArray[Any]]
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space of the rows; empty for the result of an SQL statement."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A row at a time; NULL is None."""
        lists = [column.tolist() for column in self.arrays.values()]
        return (dict(zip(self.arrays, row, strict=True)) for row in zip(*lists, strict=True))

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.arrays.values()))) if self.arrays else 0

    def keys(self) -> Sequence[str]:
        """The names of the columns."""
        return tuple(self.arrays)

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Names and columns."""
        return iter(self.arrays.items())

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain Python values for each row, with None for NULL."""
        return list(self)

    def first(self, rows: SupportsIndex) -> Columns:
        """Only the first rows."""
        return Columns({name: column[:rows] for name, column in self.arrays.items()}, self.scan, self.space)

    def to_arrow(self) -> Any:
        """A pyarrow.Table. Raises MissingPackage without pyarrow."""
        pyarrow = optional("pyarrow")
        return pyarrow.table({name: _of_arrow(pyarrow, column) for name, column in self.arrays.items()})

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; whole numbers with NULLs have the type Int64. Raises MissingPackage without pandas."""
        pandas = optional("pandas")
        return pandas.DataFrame({name: _of_pandas(pandas, column) for name, column in self.arrays.items()})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return as_text(self, len(self))

    def _repr_html_(self) -> str:
        return as_html(self, len(self))


def column_of(values: Sequence[Any]) -> NDArray[Any]:
    """A column of plain values: numbers and booleans with None in them are masked, all else are objects."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if len(types) != 1 or not types <= {int, float, bool} or (types == {int} and _too_large(known)):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    if len(known) == len(values):
        return np.array(values)
    mask = [value is None for value in values]
    return ma.array([known[0] if value is None else value for value in values], mask=mask)


def as_text(table: Columns, rows: int, title: str = "") -> str:
    """The first rows of a table that has so many, below each other; numbers to the right."""
    names, cells, left = _shown(table, rows)
    if not rows:
        left.append("(no rows)")
    widths = [max(map(len, (name, *own)), default=0) for name, own in zip(names, cells, strict=True)]
    right = [_is_number(column) for column in table.arrays.values()]
    lines = [title] if title else []
    for start, stop in _blocks(widths):
        own = slice(start, stop)
        for line in (names, *zip(*cells, strict=True)):
            padded = zip(line[own], widths[own], right[own], strict=True)
            lines.append(
                "  ".join(f"{cell:>{width}}" if number else f"{cell:<{width}}" for cell, width, number in padded)
            )
        lines += [""] * (stop < len(widths))
    return "\n".join(line.rstrip() for line in (*lines, *left))


def _blocks(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The columns to print side by side: as many as fit on a terminal, otherwise all."""
    room = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    start, taken = 0, -2
    for place, width in enumerate(widths):
        taken += width + 2
        if room is not None and taken > room and place > start:
            yield start, place
            start, taken = place, width
    yield start, len(widths)


def as_html(table: Columns, rows: int, title: str = "", most: int = SHOWN) -> str:
    """As `as_text`, for a notebook. All text is escaped."""
    names, cells, left = _shown(table, rows, most)
    if not rows:
        left.append("No rows.")
    caption = f"<caption>{escaped(' '.join((title, *left)))}</caption>" if title or left else ""
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in zip(*cells, strict=True)
    )
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(table: Columns, rows: int, most: int = SHOWN) -> tuple[list[str], list[list[str]], list[str]]:
    """The names of the columns, the cells of each, and a remark about the rows that are left out."""
    most = rows if rows <= most + 2 else most
    shown = table.first(most)
    left = [f"… {rows - most:,} more rows"] if rows > most else []
    names = [_plain(name) for name in shown.arrays]
    return names, [[_cell(value) for value in column.tolist()] for column in shown.arrays.values()], left


def _cell(value: Any) -> str:
    if value is None or isinstance(value, Html):
        return "-" if value is None else value
    text = _plain(f"{value:.6g}" if isinstance(value, float) else str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _plain(text: str) -> str:
    """Without control characters: a label in somebody's data set must not steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _is_number(column: NDArray[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _of_arrow(pyarrow: Any, column: NDArray[Any]) -> Any:
    if isinstance(column, ma.MaskedArray):
        return pyarrow.array(column.data, mask=ma.getmaskarray(column))
    return pyarrow.array(column.tolist()) if column.dtype == object else column


def _of_pandas(pandas: Any, column: NDArray[Any]) -> Any:
    if not isinstance(column, ma.MaskedArray):
        return column.tolist() if column.dtype == object else column
    mask = ma.getmaskarray(column)
    if not mask.any():
        return column.data
    if column.dtype.kind in "iu":  # as floats, those above 2^53 would be others
        return pandas.arrays.IntegerArray(column.data.copy(), mask.copy())
    return column.tolist()


def _too_large(numbers: Sequence[int]) -> bool:
    return not -(2**63) <= min(numbers) <= max(numbers) < 2**63
