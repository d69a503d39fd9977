"""Data-parallel training: n processes, the ranks, train one model, each on its own rows of every batch.

The gradients that their optimizers apply are averaged over all ranks, so the slots of one explain a part. Where all of
them are about to make the same update, the projections of their slots are added up: each rank then measures the same
gradient factor, with the 1 / n of the average in it, the same residuals, and the same distances of the same weights.

What the ranks exchange goes through a group of their own, so that it cannot meet what the training exchanges, and no
rank waits for longer than WAIT_SECONDS for one that is not coming: then, or where they are about to make other updates,
they have parted, each goes on alone, and the record says why.

Shapes: P numbers over all parameters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from numbers import Integral
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import distributed

from dualform.errors import AlreadyExists, BadInput, RecordingError
from dualform.record.projection import Doubles
from dualform.record.training_shard import UPDATES, TrainingShard
from dualform.store.header import Header
from dualform.store.manifest import FILE, shard_folder
from dualform.store.new_folder import check_new_folder
from dualform.store.writer import Writer

WAIT_SECONDS = 60.0
"""How long a rank waits for the others: between one rank's optimizer step and another's, and for the first shard."""


class Exchange(Protocol):
    """Adds numbers up over the ranks."""

    def total(self, numbers: Doubles) -> Doubles:
        """float64[n]: the sum of what all ranks give, the same on each. All ranks call it, in the same order.

        Raises RuntimeError where one of them does not.
        """

    def close(self) -> None:
        """The training has ended on this rank."""


class ProcessExchange:
    """Through torch.distributed, in a group beside the training's own."""

    def __init__(self) -> None:
        """To be called on all ranks. Raises RecordingError where one of them does not."""
        try:
            self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=WAIT_SECONDS))
        except RuntimeError as error:
            raise RecordingError(
                f"The ranks could not be joined: {str(error).splitlines()[0]}.",
                hint="Make a recorder on every rank.",
            ) from error

    def total(self, numbers: Doubles) -> Doubles:
        if not distributed.is_initialized():
            raise RuntimeError("the training has left its process group")
        summed = torch.from_numpy(numbers.copy())
        distributed.all_reduce(summed, group=self._group)
        return summed.numpy()

    def close(self) -> None:
        # The training may have destroyed all groups already, inside the recorder's with.
        if distributed.is_initialized():
            distributed.destroy_process_group(self._group)


class Ranks:
    """One rank among all of them: a TrainingShard."""

    def __init__(self, number: int, count: int, exchange: Exchange) -> None:
        self.number, self.count = number, count
        self.parted = ""
        """Why the ranks do not measure together any more; empty while they do."""
        self._exchange, self._closed = exchange, False

    @classmethod
    def joined(cls, rank: int, ranks: int, alone: bool = True) -> Ranks | None:
        """This process among the ranks of torch.distributed; None where it is the only one and `alone`. All ranks call
        it.

        Raises BadInput for numbers that are not those of torch.distributed, RecordingError where a rank does not come.
        """
        if ranks == 1 and rank == 0 and alone:
            return None
        there = distributed.is_available() and distributed.is_initialized()
        known = (distributed.get_rank(), distributed.get_world_size()) if there else None
        if known != (rank, ranks):
            said = "is not initialised" if known is None else f"says rank {known[0]} of {known[1]}"
            raise BadInput(
                f"rank={rank} and ranks={ranks} do not match torch.distributed, which {said}.",
                hint="After init_process_group, pass torch.distributed.get_rank() and get_world_size().",
                field="ranks",
            )
        return cls(rank, ranks, ProcessExchange())

    def agree(self, update: str, step: int, recorded: bool, optimizer: int = 0) -> bool:
        """This optimizer of every rank is about to make this update, of or after this step; `recorded`: this rank has
        slots of it. Whether all ranks have: a step that one leaves out for NaN is no step of the others.
        """
        ranks = self._gathered(optimizer, UPDATES.index(update), step, recorded)
        if ranks is None:
            return recorded
        if out := [rank for rank, row in enumerate(ranks) if row[0] < 0]:
            self._part(f"rank {out[0]} ran out of batches before the others")
            return recorded
        (*first, _), *others = ranks
        for rank, (*own, _) in enumerate(others, start=1):
            if own != first:
                self._part(f"rank {rank} made an update {_told(*own)} steps, where rank 0 made one {_told(*first)}")
                return recorded
        return all(there for *_, there in ranks)

    def run_out(self) -> None:
        """This rank has no further batch, while others go on: they hear of it at their next update."""
        if not self.parted:
            self._gathered(*[-1.0] * 4)  # in the place of what `agree` says
            self._part(f"rank {self.number} ran out of batches before the others")

    def summed(self, numbers: Doubles, about: Sequence[float]) -> Doubles | None:
        """As TrainingShard says; `about` is compared over the ranks before anything is added up."""
        ranks = self._gathered(len(numbers), *about)
        if ranks is None:
            return None
        if any(other != ranks[0] for other in ranks):
            self._part("the ranks recorded different steps or layers")
            return None
        return self._total(numbers) if len(numbers) else numbers

    def _gathered(self, *numbers: float) -> list[tuple[float, ...]] | None:
        """What each rank says, in their order; None where they have parted."""
        own = np.zeros((self.count, len(numbers)))
        own[self.number] = numbers
        total = self._total(own.reshape(-1))
        return None if total is None else [tuple(row) for row in total.reshape(own.shape).tolist()]

    def _total(self, numbers: Doubles) -> Doubles | None:
        if self.parted:
            return None
        try:
            return self._exchange.total(numbers)
        except RuntimeError as error:
            self._part(f"rank {self.number} lost contact with the others: {str(error).splitlines()[0]}")
            return None

    def _part(self, reason: str) -> None:
        self.parted = f"{reason}; the slots of one rank explain its part of the gradients only"

    def close(self) -> None:
        """The training has ended on this rank, or is not recorded any more."""
        if not self._closed:
            self._closed = True
            self._exchange.close()

    def check_folder(self, path: Path) -> None:
        """Raises AlreadyExists where this rank's shard, or anything in the place of the first one, is there already."""
        if self.number == 0:
            check_new_folder(path)
        elif (path / shard_folder(self.number)).exists():
            raise AlreadyExists(f"{path / shard_folder(self.number)} already exists.", hint="Record into a new folder.")

    def writer(self, header: Header) -> Writer:
        """The writer of this rank's shard; a further one waits until the first has created the memory.

        Raises RecordingError where it waits in vain.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while self.number and not (header.path / FILE).exists():
            if time.monotonic() > deadline:
                raise RecordingError(
                    f"rank {self.number} waited {WAIT_SECONDS:.0f} seconds for rank 0 to create {header.path}.",
                    hint="Record on every rank, into one folder that all of them can read.",
                )
            time.sleep(0.01)
        return Writer(header, shard_number=self.number, shards=self.count)


def _told(optimizer: float, kind: float, steps: float) -> str:
    """An update in words, of the first optimizer unless another one is named."""
    whose = f"of optimizer {int(optimizer)}, " if optimizer else ""
    return f"{whose}{UPDATES[int(kind)]}, after {int(steps)}"


def shard_of(rank: int, ranks: int | TrainingShard, alone: bool = True) -> TrainingShard | None:
    """This process among those that record together; None where it is the only one and `alone`.

    Raises BadInput for `ranks` that are neither a number nor a TrainingShard, and what Ranks.joined raises.
    """
    if isinstance(ranks, TrainingShard):
        return ranks
    if isinstance(ranks, Integral):
        return Ranks.joined(rank, int(ranks), alone)
    said = {name for name in vars(TrainingShard) if not name.startswith("_")} | {*TrainingShard.__annotations__}
    raise BadInput(
        f"ranks must be a number or a TrainingShard; {type(ranks).__name__} lacks "
        f"{', '.join(sorted(said - set(dir(ranks))))}.",
        hint="Pass the number of ranks, for example ranks=torch.distributed.get_world_size().",
        field="ranks",
    )
