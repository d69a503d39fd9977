"""The keys that are measured: a layer of a recorded study, or generated ones; and the queries.

Shapes: T slots, n queries, d dimensions, b slots of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot

BLOCK = 12_800
CLUSTERS = 300
LAYER = "layer-1"
"""The study's layer of 800 x 800."""


@dataclass(frozen=True)
class SlotBlock:
    """Some slots in order."""

    keys: NDArray[np.float32]
    """float32[b, d]."""
    columns: dict[str, NDArray[Any]]
    """dataset, label and sample of each slot."""


class Source(Protocol):
    """Where keys come from."""

    @property
    def origin(self) -> str:
        """One sentence for the document."""
        ...

    @property
    def datasets(self) -> tuple[str, str]:
        """The dataset of the first half of the slots, and that of the second."""
        ...

    def blocks(self, slots: int) -> Iterator[SlotBlock]:
        """T slots: half of each dataset, either half contiguous."""
        ...

    def queries(self, count: int) -> NDArray[np.float32]:
        """float32[n, d], the two datasets' in turn."""
        ...


class StudyKeys:
    """A layer of a recorded continual study, around the switch from one dataset to the other."""

    def __init__(self, memory: Snapshot) -> None:
        self._memory = memory
        self._dataset = memory.column(memory.layer(LAYER).space, "dataset")
        changes = np.flatnonzero(self._dataset[1:] != self._dataset[:-1]) + 1
        if len(changes) != 1:
            raise click.UsageError("the study is no continual one: its dataset must change exactly once.")
        self._switch = int(changes[0])
        self.datasets = (str(self._dataset[0]), str(self._dataset[-1]))
        self.origin = f"keys of {LAYER} of a recorded continual study, around the switch from {self.datasets[0]} to "
        self.origin += f"{self.datasets[1]}; queries are rows of its query sets"

    def blocks(self, slots: int) -> Iterator[SlotBlock]:
        first, last = self._switch - slots // 2, self._switch + slots // 2
        if first < 0 or last > len(self._dataset):
            raise click.UsageError(
                f"the study holds {len(self._dataset)} slots, {self._switch} before the switch: too few for {slots}."
            )
        space = self._memory.layer(LAYER).space
        columns = {name: self._memory.column(space, name) for name in ("dataset", "label", "sample")}
        keys = self._memory.keys(LAYER)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            block = np.ascontiguousarray(keys.entry_block(start, stop))
            yield SlotBlock(block, {name: column[start:stop] for name, column in columns.items()})

    def queries(self, count: int) -> NDArray[np.float32]:
        query_sets = [self._memory.query_set(f"test-{dataset}").queries(LAYER) for dataset in self.datasets]
        half = -(-count // 2)
        turns: NDArray[np.float32] = np.stack([query_set[:half] for query_set in query_sets], axis=1).reshape(
            2 * half, -1
        )[:count]
        return turns


class GeneratedKeys:
    """What a relu leaves of clustered normal numbers: about half of it zeros, as with real keys."""

    datasets = ("first", "second")
    origin = f"generated: relu of normal numbers around {CLUSTERS} centres (no recorded study was at hand)"

    def __init__(self, width: int, seed: int = 0) -> None:
        self._seed = seed
        self._centres = np.random.default_rng(seed).normal(size=(CLUSTERS, width)).astype(np.float32)

    def blocks(self, slots: int) -> Iterator[SlotBlock]:
        random = np.random.default_rng((self._seed, 1))
        for start in range(0, slots, BLOCK):
            slot = np.arange(start, min(start + BLOCK, slots))
            second = slot >= slots // 2
            cluster = random.integers(0, CLUSTERS // 2, len(slot)) + second * (CLUSTERS // 2)
            columns = {
                "dataset": np.array(self.datasets, dtype=object)[second.astype(int)],
                "label": cluster % 10,
                "sample": random.integers(0, 60_000, len(slot)),
            }
            yield SlotBlock(self._around(cluster, random), columns)

    def queries(self, count: int) -> NDArray[np.float32]:
        random = np.random.default_rng((self._seed, 2))
        cluster = random.integers(0, CLUSTERS // 2, count) + np.arange(count) % 2 * (CLUSTERS // 2)
        return self._around(cluster, random)

    def _around(self, cluster: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float32]:
        noise = random.normal(size=(len(cluster), self._centres.shape[1])).astype(np.float32)
        keys: NDArray[np.float32] = np.maximum(self._centres[cluster] + noise, 0)
        return keys


def read_study(path: Any) -> Snapshot:
    """A study whose segments are not kept in memory."""
    return Snapshot.open(path, SegmentCache(0))
