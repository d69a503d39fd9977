"""What a command is doing, on stderr: bars where somebody watches, and else at most a line for each part of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dualform_client.cli.printing import print_note

LOADING = "loading PyTorch and the studies"
"""What takes seconds before a study begins."""

Report = Callable[[str, int, int], None]
"""Takes a label, how much is done, and how much there is in all."""


@contextmanager
def progress_bars() -> Iterator[Report | None]:
    """A function that reports progress, with one bar per label; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bars() as report:
        yield report


@contextmanager
def progress_or_lines() -> Iterator[Report]:
    """As `progress_bars`, for what takes minutes: a log gets a line as each label begins, and no more of it."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with _bars() as report:
        yield report


class _Lines:
    """Reports each label once."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def __call__(self, label: str, done: int, total: int) -> None:
        if label not in self._begun:
            self._begun.add(label)
            print_note(label)


@contextmanager
def _bars() -> Iterator[Report]:
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
