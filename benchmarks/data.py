"""What is asked in a run: the keys as one matrix, queries, masks and groups.

Shapes: T slots, n queries, d dimensions, G groups.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import LAYER, GeneratedKeys, Source, StudyKeys, read_study
from benchmarks.plan import Plan
from benchmarks.written import write_memory
from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot

COLUMNS = ("dataset", "label", "sample", "position", "coin")


@dataclass(frozen=True, eq=False)
class Mask:
    """The slots whose `column` is `value`."""

    column: str
    value: Any
    stays: NDArray[np.bool_]
    """bool[T]."""

    @property
    def where(self) -> str:
        if isinstance(self.value, bool):
            return self.column
        return f"{self.column} = {self.value!r}"

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.stays)


@dataclass(frozen=True, eq=False)
class Groups:
    """A grouping of all slots by columns, in value order."""

    by: tuple[str, ...]
    numbers: NDArray[np.int64]
    """int64[T]: the group of each slot."""
    count: int
    """G."""


@dataclass(frozen=True, eq=False)
class Data:
    layer: str
    keys: NDArray[np.float32]
    """float32[T, d], contiguous."""
    queries: NDArray[np.float32]
    """float32[n, d]."""
    columns: dict[str, NDArray[Any]]

    def mask(self, column: str, value: Any) -> Mask:
        return Mask(column, value, np.asarray(self.columns[column] == value, dtype=bool))

    @property
    def coin(self) -> Mask:
        """Half of the slots, at random."""
        return self.mask("coin", True)

    @property
    def half(self) -> Mask:
        """Half of the slots, contiguous."""
        return self.mask("dataset", self.columns["dataset"][0])

    @property
    def tiny(self) -> Mask:
        """The slots of one sample."""
        return self.mask("sample", int(self.columns["sample"][0]))

    def groups(self, *by: str) -> Groups:
        numbers = np.zeros(len(self.keys), dtype=np.int64)
        for name in by:
            values, codes = np.unique(self.columns[name], return_inverse=True)
            numbers = numbers * len(values) + codes
        present, numbers = np.unique(numbers, return_inverse=True)
        return Groups(by, numbers, len(present))


def source(plan: Plan) -> Source:
    return GeneratedKeys(plan.width) if plan.study is None else StudyKeys(read_study(plan.study))


def prepare(plan: Plan) -> None:
    """Write the run's memory and queries into its folder."""
    found = source(plan)
    write_memory(plan.memory, found, plan.slots)
    np.save(plan.folder / "queries.npy", found.queries(plan.most_queries))
    (plan.folder / "origin.json").write_text(json.dumps(found.origin))


def load(plan: Plan) -> Data:
    """What `prepare` wrote."""
    return read(plan.memory, np.load(plan.folder / "queries.npy"))


def read(path: Path, queries: NDArray[np.float32]) -> Data:
    memory = Snapshot.open(path, SegmentCache(0))
    stored = memory.keys(LAYER)
    keys = np.empty((stored.rows, stored.width), dtype=np.float32)
    for start, block in stored.blocks(1 << 14):
        keys[start : start + len(block)] = block
    space = memory.layer(LAYER).space
    columns = {name: np.asarray(memory.column(space, name)) for name in COLUMNS}
    return Data(LAYER, keys, queries, columns)


def origin(plan: Plan) -> str:
    return str(json.loads((plan.folder / "origin.json").read_text()))
