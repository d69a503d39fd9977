"""Whether the processes of a training give the same columns, spaces and axes.

Whether the processes of a training gave each layer's slots the same space, and its batch the same axis; and their
columns.

Each chooses by its own first batch, and where they chose apart, the slots of one would be those of another space.

Shapes: T layers, and n numbers of both.

Each fixes its columns by its own first values. Where types differ, a reader gives the column one for all, which users
are told of; a column that is of rows here and of single slots there would be NULL in all other spaces for half of them.

Shapes: N processes, C characters that all of them say.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from dualform.errors import RecordingError
from dualform.record.projection import Doubles
from dualform.record.ranks import TrainingShard
from dualform.record.slots.columns import StepColumns
from dualform.record.slots.spaces import Spaces
from dualform.store.tables import common_types

Said: TypeAlias = Mapping[str, Mapping[str, str]]
"""By column, its DuckDB type in each space of whose single slots it speaks; under "" that of the column of rows."""


class RankColumns:
    """The columns of one process, beside those of the others."""

    def __init__(self, columns: StepColumns) -> None:
        self._columns = columns
        self._compared: list[float] = []
        """The sum of `numbers` of which all is said."""
        self._told = set[str]()

    @property
    def numbers(self) -> Doubles:
        """float64[3], to be added up: 1, a code of all columns, and the code's square."""
        code = zlib.crc32(json.dumps(self._columns.said, sort_keys=True).encode()) % _CODES
        return np.array([1, code, code * code], dtype=np.float64)

    def check(self, total: Doubles, shard: TrainingShard) -> None:
        """`total` float64[3]: the sum of `numbers` over all processes, which call this together.

        Warns of a column that has other types on other ranks. Raises RecordingError for one that is of rows on one and
        of single slots on another: on each of them alike.
        """
        count, codes, squares = map(int, total.tolist())
        if count * squares == codes * codes or self._compared == total.tolist():
            return
        self._compared = total.tolist()
        ranks = _gathered(self._columns.said, count, shard)
        for name in sorted({name for said in ranks for name in said}):
            having = [(rank, said[name]) for rank, said in enumerate(ranks) if name in said]
            for (rank, own), (other, theirs) in combinations(having, 2):
                _check_levels(name, (rank, own), (other, theirs))
                for space in own.keys() & theirs.keys():
                    if own[space] != theirs[space]:
                        self._tell(name, f"{own[space]} on rank {rank} and {theirs[space]} on rank {other}",
                                   common_types({name: own[space]}, {name: theirs[space]})[name])  # fmt: skip

    def _tell(self, name: str, types: str, common: str) -> None:
        if name not in self._told:
            self._told.add(name)
            warnings.warn(
                f"column {name!r} is {types}, and will be read as {common}. Give it one type on every rank.",
                RuntimeWarning,
                stacklevel=2,
            )


def _check_levels(name: str, one: tuple[int, Mapping[str, str]], other: tuple[int, Mapping[str, str]]) -> None:
    for (rank, own), (another, theirs) in ((one, other), (other, one)):
        if set(own) == {""} and "" not in theirs:
            raise RecordingError(
                f"column {name!r} has a value for each row on rank {rank}, but for each slot on rank {another}.",
                hint="Pass it alike on every rank, or rename one of them.",
                field=name,
            )


def _gathered(said: Said, count: int, shard: TrainingShard) -> Sequence[Said]:
    """What each of `count` processes says, in their order; nothing where they part meanwhile."""
    own = np.frombuffer(json.dumps(said).encode(), np.uint8)
    lengths = np.zeros(count)
    lengths[shard.number] = len(own)
    every = shard.summed(lengths, [])
    if every is None:
        return []
    ends = np.cumsum(every.astype(np.int64))
    text = np.zeros(int(ends[-1]))  # float64[C]
    text[ends[shard.number] - len(own) : ends[shard.number]] = own
    whole = shard.summed(text, [])
    return [] if whole is None else [json.loads(part.tobytes()) for part in np.split(whole.astype(np.uint8), ends[:-1])]


_CODES = 1 << 20
"""So few that the sum of squares over thousands of processes is a whole number in float64."""


class Placement:
    """Where one process has the slots of its layers, and what it says of them."""

    def __init__(self, spaces: Spaces, columns: StepColumns) -> None:
        self._spaces, self._columns = spaces, RankColumns(columns)

    @property
    def numbers(self) -> Doubles:
        """float64[n], to be added up: of each layer that has slots 1, a code of its place, and the code's square; and
        the numbers of the columns.
        """
        codes = [self._code(layer) for layer in self._spaces.all_layers]
        seen = [(0, 0, 0) if code is None else (1, code, code * code) for code in codes]
        return np.concatenate([np.array(seen, dtype=np.float64).reshape(-1), self._columns.numbers])

    def _code(self, layer: str) -> int | None:
        """Of space and axis; None for a layer without slots."""
        if layer not in self._spaces.layers:
            return None
        place = f"{self._spaces.layers[layer]}/{self._spaces.axis_of(layer)}"
        return zlib.crc32(place.encode()) % _CODES

    def check(self, total: Doubles, shard: TrainingShard) -> None:
        """`total` float64[n]: the sum of `numbers` over all processes, which call this together.

        Raises RecordingError for a layer that several processes have in different places: on each of them alike; and as
        RankColumns.
        """
        *layers, columns = total.reshape(-1, 3)
        self._columns.check(columns, shard)
        for layer, numbers in zip(self._spaces.all_layers, (own.tolist() for own in layers), strict=True):
            count, codes, squares = map(int, numbers)
            if count * squares != codes * codes:
                raise RecordingError(
                    f"layer {layer!r} has another space or batch axis on another rank{self._here(layer)}.",
                    hint=f"Pass the same spaces={{{layer!r}: …}} to Recorder and batch_dim= to recorder.step on "
                    f"every rank.",
                    field="spaces",
                )

    def _here(self, layer: str) -> str:
        if layer not in self._spaces.layers:
            return ""
        space, axis = self._spaces.layers[layer], self._spaces.axis_of(layer)
        return f"; on this rank it is in {space!r}, with the batch in axis {axis}"
