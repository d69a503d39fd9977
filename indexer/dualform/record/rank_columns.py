"""Whether the processes of a training give the same columns: of rows or of single slots alike, and of the same types.

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
from dualform.record.metadata import StepColumns
from dualform.record.projection import Doubles
from dualform.record.training_shard import TrainingShard
from dualform.store.user_columns import common_types

Said: TypeAlias = Mapping[str, Mapping[str, str]]
"""By column, its DuckDB type in each space of whose single slots it speaks; under "" that of the column of rows."""
_CODES = 1 << 20
"""So few that the sum of squares over thousands of processes is a whole number in float64."""


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
