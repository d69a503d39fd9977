"""The folders of the trainings of one trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import count
from os import PathLike
from pathlib import Path

from dualform.record.recorder import Recorder


class Folders:
    """Folders for a trainer that may train again, for example with a smaller batch after running out of memory.

    Each further training has another folder, `mine-2` after `mine`, unless trainings are resumed.
    """

    def __init__(self, path: str | PathLike[str], resumed: bool) -> None:
        """`resumed`: trainings go on in the memory of those before."""
        self._resumed = resumed
        self._folders = _beside(Path(path))
        self._now: Path | None = None

    def folder(self, before: Recorder | None) -> Path:
        """Of the training that begins; `before`: the recorder of the one before it, None of the first."""
        if self._now is None:
            self._now = next(self._folders)
        elif before is not None and before.steps and not self._resumed:
            first, self._now = self._now, next(self._folders)
            warnings.warn(
                f"the trainer trains again: from here on it is recorded in {self._now}, and what came before stays in "
                f"{first}.",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._now


def _beside(path: Path) -> Iterator[Path]:
    """The folder, and those beside it that are not there when the first is asked for, which all ranks see alike."""
    taken = {other.name for other in path.parent.iterdir()} if path.parent.is_dir() else set()
    yield path
    yield from (path.with_name(name) for n in count(2) if (name := f"{path.name}-{n}") not in taken)
