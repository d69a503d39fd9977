"""The options of a study's run, how it reports progress, and the files of its data."""

from __future__ import annotations

import gzip
import os
import shlex
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

from dualform.errors import Damaged, NotFound

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


@dataclass(frozen=True)
class Assignment:
    """One run of a study, as the command line words it. What it does not say is the study's own affair."""

    out: Path
    """Folder for the memory and the report."""
    data: Path | None = None
    """Folder of the datasets; None for the usual places."""
    steps: int | None = None
    """Updates, in place of the study's own number."""
    seed: int | None = None
    """What every draw of a training follows from."""
    progress: Progress | None = None
    runs: int | None = None
    """Trainings, with the seeds that follow, over which a mean and a deviation are taken."""
    preset: str | None = None
    """Name of a set of sizes."""
    prompts: tuple[str, ...] = ()
    """Texts to ask a language model's memory about."""
    rerun: bool = False
    """Train twice and store no keys."""
    dry_run: bool = False
    """Say slots, bytes and time, and train nothing."""

    @property
    def first_seed(self) -> int:
        """The seed of the first training: 0 where none is given."""
        return 0 if self.seed is None else self.seed

    def command(self, study: str) -> str:
        """The command line that gives this assignment; DATA and RUN stand for the reader's own folders."""
        words = ["dualform", "study", study, "--data", "DATA", "--out", "RUN", "--seed", str(self.first_seed)]
        for field in fields(self):
            given = getattr(self, field.name)
            if field.name in ("out", "data", "seed", "progress") or given == field.default:
                continue
            if isinstance(given, bool):
                words.append(option_of(field.name))
            else:
                for value in given if isinstance(given, tuple) else (given,):
                    words += [option_of(field.name), shlex.quote(str(value))]
        return " ".join(words)


def option_of(field: str) -> str:
    """A field of an assignment as the command line spells it."""
    return "--" + {"prompts": "prompt"}.get(field, field).replace("_", "-")


DATA_VARIABLE = "DUALFORM_DATA"


def data_folder(data: Path | None) -> Path:
    """The folder given, else $DUALFORM_DATA, else the user's cache."""
    if data is not None:
        return data
    if os.environ.get(DATA_VARIABLE):
        return Path(os.environ[DATA_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualform"


def find_file(folder: Path, *names: str) -> Path | None:
    """The first of the files that is there, gzipped or as it is."""
    candidates = (folder / f"{name}{end}" for name in names for end in (".gz", ""))
    return next((path for path in candidates if path.is_file()), None)


def missing_file(file: str, folder: Path, fetch: str) -> NotFound:
    """The error of a file that is not in a data folder; `fetch` says where it comes from."""
    hint = f"{fetch}; name another data folder with --data DIR or the environment variable {DATA_VARIABLE}."
    return NotFound(f"{file} is not in {folder}.", hint=hint, field="data")


def read_file(path: Path) -> bytes:
    """What a file holds, decompressed if its name ends in .gz. Raises Damaged if it cannot be decompressed."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"cannot be read ({error})") from None


def damaged(path: Path, what: str, hint: str = "Remove the file and fetch it again.") -> Damaged:
    return Damaged(f"{path} {what}.", hint=hint)
