"""Printing: answers go to stdout, as one JSON object or as tables; notes and progress go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from dualform.answers.table import json_value

LOADING = "loading PyTorch and the studies"
"""The label for the seconds before a study begins."""

Report = Callable[[str, int, int], None]
"""Takes a label, the part done, and the total."""


@dataclass(frozen=True)
class Importance:
    """The order in which a narrow terminal drops columns: those that are empty in every row, then `first`, then unnamed
    ones from the right, then `last`.
    """

    kept: Sequence[str] = ()
    """Never dropped."""
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
    """Right-aligns numbers, prints floats with six digits and NULL as a dash.

    A file or a pipe gets all columns at full width. On a terminal texts are wrapped and, if `importance` is given,
    columns dropped, which a line below names. If that is not enough, each row becomes a list of its columns.
    """
    from dualform_client.cli.tables import show  # not needed for JSON

    show(title, columns, rows, importance)


def print_line(line: str) -> None:
    click.echo(printable(line))


def print_note(note: str) -> None:
    """Prints a remark about an answer to stderr."""
    click.echo(printable(note), err=True)


def printable(text: str) -> str:
    """The text without control characters: a label in a data set must not steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def titled(*parts: str) -> str:
    """The line above a table, from the parts that are not empty."""
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
    """A function that reports progress under one label; None without a terminal."""
    with progress_bars() as report:
        yield report and (lambda _, done, total: report(label, done, total))


def _lines() -> Report:
    begun = set[str]()

    def report(label: str, done: int, total: int) -> None:
        if label not in begun:
            begun.add(label)
            print_note(label)

    return report
