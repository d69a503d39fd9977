"""Whether the processes of a training agree on spaces, batch axes and column types.

Each process chooses by its own first batches. If they chose differently, the slots of one would be those of another
space, and a column of rows here and of single slots there would be NULL in all other spaces for half of the memory.
Where only the types of a column differ, a reader gives it one type for all, which users are warned of.

The processes exchange these choices at the update after which any of them made a new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from dualform.errors import RecordingError
from dualform.record.projection import Doubles
from dualform.record.ranks import TrainingShard
from dualform.record.slots.columns import StepColumns
from dualform.record.slots.spaces import Spaces
from dualform.store.tables import common_types


@dataclass(frozen=True)
class Choices:
    """What one process chose so far."""

    layers: Mapping[str, tuple[str, int]]
    """Layer -> space and batch axis, of those that have slots."""
    columns: Mapping[str, Mapping[str, str]]
    """Column -> its DuckDB type in each space of whose single slots it speaks; under "" that of the column of rows."""


class Agreement:
    """The choices of one process, held against those of the others."""

    def __init__(self, spaces: Spaces, columns: StepColumns) -> None:
        self._spaces, self._columns = spaces, columns
        self._compared: Choices | None = None
        """What the others know of this process."""
        self._warned = set[str]()

    def _choices(self) -> Choices:
        layers = {layer: (space, self._spaces.axis_of(layer)) for layer, space in self._spaces.layers.items()}
        return Choices(layers, self._columns.said)

    @property
    def news(self) -> Doubles:
        """float64[1], to be added up over the processes: 1 if this one has chosen anything since they compared."""
        return np.array([self._choices() != self._compared], dtype=np.float64)

    def check(self, news: Doubles, shard: TrainingShard) -> None:
        """`news` float64[1]: the sum over all processes, which call this together.

        Warns of a column that has other types on other ranks. Raises RecordingError, on all ranks alike, for a layer in
        different spaces or with different batch axes, and for a column of rows on one and of single slots on another.
        """
        own = self._choices()
        ranks = shard.gather(own) if news[0] else None
        if ranks is None:
            return
        self._check_columns([rank.columns for rank in ranks])
        for layer in self._spaces.all_layers:
            if len({rank.layers[layer] for rank in ranks if layer in rank.layers}) > 1:
                here = ""
                if layer in own.layers:
                    space, axis = own.layers[layer]
                    here = f"; on this rank it is in {space!r}, with the batch in axis {axis}"
                raise RecordingError(
                    f"layer {layer!r} has another space or batch axis on another rank{here}.",
                    hint=f"Pass the same spaces={{{layer!r}: …}} to Recorder and batch_dim= to recorder.step on "
                    f"every rank.",
                    field="spaces",
                )
        self._compared = own

    def _check_columns(self, ranks: Sequence[Mapping[str, Mapping[str, str]]]) -> None:
        for name in sorted({name for columns in ranks for name in columns}):
            types = [(rank, columns[name]) for rank, columns in enumerate(ranks) if name in columns]
            for (rank, own), (other, theirs) in permutations(types, 2):
                if set(own) == {""} and "" not in theirs:
                    raise RecordingError(
                        f"column {name!r} has a value for each row on rank {rank}, but for each slot on rank {other}.",
                        hint="Pass it alike on every rank, or rename one of them.",
                        field=name,
                    )
            for (rank, own), (other, theirs) in combinations(types, 2):
                for space in own.keys() & theirs.keys():
                    if own[space] != theirs[space] and name not in self._warned:
                        self._warned.add(name)
                        common = common_types({name: own[space]}, {name: theirs[space]})[name]
                        warnings.warn(
                            f"column {name!r} is {own[space]} on rank {rank} and {theirs[space]} on rank {other}, and "
                            f"will be read as {common}. Give it one type on every rank.",
                            RuntimeWarning,
                            stacklevel=2,
                        )
