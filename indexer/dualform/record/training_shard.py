"""What a kind of shard says of one process among those that record a training together.

A new kind is a file with a class like this one, as ranks.py, whose object is given as Recorder(ranks=…).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from dualform.record.projection import Doubles
from dualform.record.sink import Sink
from dualform.store.header import Header

UPDATES = ("of the step that runs", "of the step before", "outside of all steps")
"""What kinds of update a process may be about to make."""


@runtime_checkable
class TrainingShard(Protocol):
    """The shard that this process writes, and what it measures together with the others."""

    number: int
    """Of the shard; the first one, 0, creates the memory, and its log speaks for all."""
    parted: str
    """Why the processes do not measure together any more; empty while they do."""

    def agree(self, update: str, step: int, recorded: bool, optimizer: int = 0) -> bool:
        """This optimizer of every process is about to make this update (one of UPDATES), of or after this step;
        `recorded`: this process has slots of it. Whether all have; `recorded` itself where they have parted.
        `optimizer` is left out where it is the training's first one.
        """

    def summed(self, numbers: Doubles, about: Sequence[float]) -> Doubles | None:
        """float64[n]: the sum of what all processes give, the same on each. `about`: which numbers they are.

        None where the processes have parted, or part because they do not give the same numbers.
        """

    def check_folder(self, path: Path) -> None:
        """Raises AlreadyExists where anything is in the place of this process's shard."""

    def writer(self, header: Header) -> Sink:
        """What writes this process's shard. Made on the thread that writes; raises RecordingError where it cannot."""

    def close(self) -> None:
        """The training has ended on this process, or is not recorded any more. May be called again."""


def leave(shard: TrainingShard | None) -> None:
    """The training has ended on this process, or is not recorded any more; what fails of that is a warning."""
    try:
        if shard is not None:
            shard.close()
    except Exception as error:  # of any kind, from what joins the processes: what was recorded must still be closed
        warnings.warn(f"Leaving the other processes failed: {error}", RuntimeWarning, stacklevel=2)
