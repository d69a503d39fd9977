"""Printing: answers go to stdout, as one JSON object or as tables; notes and progress go to stderr.

A command returns a `Report`, and `emit` prints it in the form that the command line asks for.
"""

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

Progress = Callable[[str, int, int], None]
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


class Note(str):
    """A remark about an answer, for stderr."""


@dataclass(frozen=True)
class Table:
    """Numbers are right-aligned, floats have six digits, and NULL is a dash.

    A file or a pipe gets all columns at full width. On a terminal texts are wrapped and, if `importance` is given,
    columns dropped, which a line below names. If that is not enough, each row becomes a list of its columns.
    """

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    """May be a generator."""
    importance: Importance | None = None


@dataclass(frozen=True)
class Report:
    """What a command answers."""

    record: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    """For --json. A function is called only then."""
    shown: Iterable[str | Table]
    """Otherwise: lines, tables and notes, printed as they come. Equal notes are printed once."""
    code: int = 0
    """The exit code."""

    def for_json(self) -> Mapping[str, Any]:
        return self.record() if callable(self.record) else self.record


_JSON = "dualform.json"
json_option = click.Option(
    ["--json", "as_json"],
    is_flag=True,
    expose_value=False,
    callback=lambda context, _option, given: context.meta.update({_JSON: given}),
    help="Print one JSON object on stdout.",
)
"""Of every command."""


def wants_json() -> bool:
    """Whether the running command was called with --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def emit(report: Report | None) -> int:
    """Prints a report. Returns the exit code."""
    if report is None:
        return 0
    if wants_json():
        print_json(report.for_json())
        return report.code
    told = set[str]()
    for part in report.shown:
        if isinstance(part, Table):
            from dualform_client.cli.tables import show  # not needed for JSON

            show(part)
        elif not isinstance(part, Note):
            print_line(part)
        elif part not in told:
            print_note(part)
            told.add(part)
    return report.code


def print_json(value: Mapping[str, Any]) -> None:
    """One line. NaN and infinities, which JSON lacks, are the texts "nan", "inf" and "-inf"."""
    click.echo(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else json_value(value)


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
def progress_bars(lines: bool = False) -> Iterator[Progress | None]:
    """A function that reports progress, with a bar for each label.

    If stderr is not a terminal: None or, with `lines`, one that prints each label once, as it begins.
    """
    if not sys.stderr.isatty():
        yield _lines() if lines else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
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


def _lines() -> Progress:
    begun = set[str]()

    def report(label: str, done: int, total: int) -> None:
        if label not in begun:
            begun.add(label)
            print_note(label)

    return report
