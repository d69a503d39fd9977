"""What a study is told to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told a label, how much is done, and how much there is in all."""


@dataclass(frozen=True)
class Assignment:
    """One run of a study, as the command line words it. What it does not say is the study's own affair."""

    out: Path
    """Folder for the memory and the report."""
    data: Path | None = None
    """Folder of the datasets; None for the usual places."""
    steps: int | None = None
    """Updates, in place of the study's own number."""
    seed: int = 0
    progress: Progress | None = None
    runs: int | None = None
    """Trainings, with the seeds that follow, over which a mean and a deviation are taken."""
    preset: str | None = None
    """Name of a set of sizes."""
    prompts: tuple[str, ...] = ()
    """Texts to ask a language model's memory about."""
    replay: bool = False
    """Train twice and store no keys."""
    dry_run: bool = False
    """Say slots, bytes and time, and train nothing."""
