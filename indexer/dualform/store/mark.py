"""Marks of a recording: moments at which a training was saved, so that it may be resumed there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.store.durable_files import checksum, checksum_pieces

Named: TypeAlias = tuple[str, NDArray[Any]]
TOLD = ("watch", "defects", "steps", "parameter_groups", "factors", "rounding_gradients")
"""Tables that may get rows of a step once that is over, as of its update."""


@dataclass(frozen=True)
class Mark:
    """The network and its optimizers once so many steps of a run were taken."""

    step: int
    """How many."""
    weights: str
    """Digest of the model's state dict."""
    buffers: str
    """Digest of what the optimizers keep of recorded parameters."""
    updates: tuple[int, ...]
    """By optimizer, how many updates were measured by then, since the first run began."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows the tables TOLD had by then, in the shard of the first process."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "updates": list(self.updates)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Mark:
        return cls(**{**fields, "updates": tuple(fields["updates"])})


@dataclass(frozen=True)
class Cut:
    """How much of a run is part of the memory, where another one went on from one of its marks."""

    steps: int
    rows: Mapping[str, int]
    """As Mark has it: what was told later, of steps before, is no part either."""


@dataclass(frozen=True)
class ContinuedRun:
    """A further run of a training, in a folder inside the memory's own."""

    folder: str
    first_step: int
    """The number of its first step among those of all runs."""
    rows: Mapping[str, int]
    """Of the run before, as Cut has it."""


def cuts(runs: Sequence[ContinuedRun]) -> list[Cut | None]:
    """Of the first run and the further ones; None for the last, which counts whole."""
    starts = [0, *(run.first_step for run in runs)]
    return [*(Cut(run.first_step - start, run.rows) for run, start in zip(runs, starts, strict=False)), None]


def digest_of(arrays: Iterable[Named]) -> str:
    """One checksum over all names and bytes, whatever the order."""
    every = sorted((name, checksum(np.asarray(array, order="C").tobytes())) for name, array in arrays)
    return checksum_pieces(f"{name}:{own}\n".encode() for name, own in every)


def named_buffers(buffers: Mapping[str, Mapping[str, NDArray[Any]]]) -> Iterable[Named]:
    """As BUFFER/PARAMETER."""
    return ((f"{kind}/{name}", array) for name, own in buffers.items() for kind, array in own.items())
