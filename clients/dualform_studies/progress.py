"""How a study tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told a label, how much is done, and how much there is in all."""


def or_silent(progress: Progress | None) -> Progress:
    """The progress that is given, or one that tells nobody."""
    return progress or _silent


def named(progress: Progress | None, what: str) -> Progress | None:
    """One that says with each label what it is about."""
    if progress is None:
        return None
    return lambda label, done, total: progress(f"{label} ({what})", done, total)


def counting(progress: Progress | None, label: str, total: int) -> Callable[[int], None]:
    """One that is told how much is done, and nothing else."""
    return lambda done: or_silent(progress)(label, done, total)


def _silent(label: str, done: int, total: int) -> None:
    """Nobody listens."""
