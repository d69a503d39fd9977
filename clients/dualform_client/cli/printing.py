"""Answers on stdout: one JSON object, or tables; what the reader should know besides, and progress, on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from dualform.answers.columns import json_value

LOADING = "loading PyTorch and the studies"
"""What takes seconds before a study begins."""

Report = Callable[[str, int, int], None]
"""Takes a label, how much is done, and how much there is in all."""


@dataclass(frozen=True)
class Importance:
    """Which columns of a table go first if a terminal has no room for all: those that are empty in every row, then
    those of `first`, then those that are not named, from the right, and those of `last` at the end.
    """

    kept: Sequence[str] = ()
    """Never left out, for they were asked for."""
    last: Sequence[str] = ()
    """The most important one first."""
    first: Sequence[str] = ()
    """The least important one first."""


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
    from dualform_client.cli.tables import show  # JSON needs none of it

    show(title, columns, rows, importance)


def print_line(line: str) -> None:
    click.echo(printable(line))


def print_note(note: str) -> None:
    """What the reader should know of an answer, apart from it."""
    click.echo(printable(note), err=True)


def printable(text: str) -> str:
    """Without control characters: a label in somebody's data set must not steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def titled(*parts: str) -> str:
    """The line above a table, of the parts that say something."""
    return " · ".join(part for part in parts if part)


@contextmanager
def progress_bars(lines: bool = False) -> Iterator[Report | None]:
    """A function that reports progress, with a bar for each label.

    If stderr is not a terminal: None or, with `lines`, one that prints each label once, as it begins.
    """
    if not sys.stderr.isatty():
        yield _lines() if lines else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield report


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """A function that reports the progress of one thing, whatever its parts are called; None without a terminal."""
    with progress_bars() as report:
        yield report and (lambda _, done, total: report(label, done, total))


def _lines() -> Report:
    begun = set[str]()

    def report(label: str, done: int, total: int) -> None:
        if label not in begun:
            begun.add(label)
            print_note(label)

    return report
