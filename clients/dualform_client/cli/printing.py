"""Answers on stdout: one JSON object, or tables."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dualform.answers.columns import json_value

if TYPE_CHECKING:  # loaded by the first table: JSON needs none of it
    from rich.console import Console

    from dualform_client.cli.importance import Importance
    from dualform_client.cli.table_layout import Layout

UNBOUNDED = 10_000
"""Width for output that no terminal shows: a table in a file or pipe is not to be cut."""

SHOWN_ROWS = 1000
"""Rows of a table that are printed: laying out more takes seconds, and nobody reads them."""


def print_json(value: Mapping[str, Any]) -> None:
    """One line. NaN and infinities, which JSON lacks, are the texts "nan", "inf" and "-inf"."""
    click.echo(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else json_value(value)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], importance: Importance | None = None
) -> None:
    """Numbers to the right; floats with six digits; NULL as a dash.

    A file or a pipe gets all columns, as wide as they are. On a terminal texts are broken and, where `importance` is
    given, columns left out, which a line below names; where that is not enough, each row is a list of its columns.
    """
    from dualform_client.cli.importance import Importance
    from dualform_client.cli.table_layout import Column, laid_out

    cells = [list(row) for row in rows]
    if len(cells) > SHOWN_ROWS:
        title, cells = f"{title}, the first {SHOWN_ROWS} (--json gives all)", cells[:SHOWN_ROWS]
    table = [
        Column(_in_one_line(name), [_cell(row[place]) for row in cells], any(_is_number(row[place]) for row in cells))
        for place, name in enumerate(columns)
    ]
    console = _console()
    layout = laid_out(table, console.width, importance or Importance(kept=[column.name for column in table]))
    print_line(title)
    if layout.widths is None:
        _print_lists(layout, console.width)
        return
    _print_rows(layout, layout.widths, console)
    if layout.left_out:
        print_line(f"left out, for want of room: {', '.join(layout.left_out)} (a pipe, and --json, get all)\n")


def _print_rows(layout: Layout, widths: Sequence[int], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dualform_client.cli.table_layout import broken

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width in zip(layout.columns, widths, strict=True):
        name = Text("\n".join(broken(column.name, width)))
        table.add_column(name, justify="right" if column.numeric else "left", width=width, no_wrap=True)
    for row in zip(*(column.cells for column in layout.columns), strict=True):
        table.add_row(*(Text("\n".join(broken(cell, width))) for cell, width in zip(row, widths, strict=True)))
    console.print(table)
    console.print()


def _print_lists(layout: Layout, width: int) -> None:
    """Each row as lines of its own: a name, and what the row has there, below it where they are too wide for one."""
    from rich.cells import cell_len, set_cell_size

    from dualform_client.cli.table_layout import broken

    names = [column.name for column in layout.columns]
    for_names = max(min(max(map(cell_len, names)), width // 2), 1)
    for_cells = max(width - for_names - 2, 1)
    for row in zip(*(column.cells for column in layout.columns), strict=True):
        for name, cell in zip(names, row, strict=True):
            for one, other in zip_longest(broken(name, for_names), broken(cell, for_cells), fillvalue=""):
                print_line(f"{set_cell_size(one, for_names)}  {other}".rstrip())
        print_line("")


def print_line(line: str) -> None:
    click.echo(_printable(line))


def print_note(note: str) -> None:
    """What the reader should know of an answer, apart from it."""
    click.echo(_printable(note), err=True)


def _console() -> Console:
    from rich.console import Console

    # rich heeds a width of dumb terminals only where it has a height, too; nothing here depends on that.
    width, height = shutil.get_terminal_size() if sys.stdout.isatty() else (UNBOUNDED, 25)
    return Console(file=sys.stdout, width=width, height=height)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else _in_one_line(str(value))


def _in_one_line(text: str) -> str:
    """As `_printable`, for a table's cells: what follows the end of a line could pass for another row."""
    return _printable(text).replace("\n", "\N{REPLACEMENT CHARACTER}")


def _printable(text: str) -> str:
    """Without control characters: a label in somebody's data set must not steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
