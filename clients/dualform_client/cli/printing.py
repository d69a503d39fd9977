"""Answers on stdout: one JSON object, or tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:  # loaded by the first table: JSON needs none of it
    from rich.console import Console
    from rich.text import Text

UNBOUNDED = 10_000
"""Width for output that no terminal shows: a table in a file or pipe is not to be cut."""

SHOWN_ROWS = 1000
"""Rows of a table that are printed: laying out more takes seconds, and nobody reads them."""


def print_json(value: Mapping[str, Any]) -> None:
    """One line. NaN and infinity, which JSON lacks, become null."""
    click.echo(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Numbers to the right; floats with six digits; NULL as a dash."""
    from rich import box
    from rich.table import Table

    cells = [list(row) for row in rows]
    if len(cells) > SHOWN_ROWS:
        title, cells = f"{title}, the first {SHOWN_ROWS} (--json gives all)", cells[:SHOWN_ROWS]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        numeric = any(isinstance(row[place], int | float) for row in cells)
        table.add_column(_text(column), justify="right" if numeric else "left")
    for row in cells:
        table.add_row(*map(_text, row))
    print_line(title)
    _console().print(table)


def print_line(line: str) -> None:
    click.echo(_printable(line))


def print_note(note: str) -> None:
    """What the reader should know of an answer, apart from it."""
    click.echo(_printable(note), err=True)


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else UNBOUNDED)


def _text(value: Any) -> Text:
    from rich.text import Text

    if value is None:
        return Text("-")
    return Text(f"{value:.6g}" if isinstance(value, float) else _printable(str(value)))


def _printable(text: str) -> str:
    """Without control characters: a label in somebody's data set must not steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
