"""The memories and the questions: generated keys, queries, masks, groups.

Shapes: T slots, n queries, d_in and d_out of the layer, G groups, b slots of a block.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Plan
from dualform.query.engine import CACHE_BYTES, Engine
from dualform.query.score import backends
from dualform.store.batch import Batch, Extent, Factor, Header, LayerRows, ParameterGroup, StepLog
from dualform.store.files import durable_files
from dualform.store.files.segment import SegmentCache
from dualform.store.layer import Layer, affine
from dualform.store.query_sets import QuerySetArrays
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import Rows
from dualform.store.writing.writer import Writer

A = TypeVar("A")
Floats: TypeAlias = NDArray[np.float32]

BLOCK = 12_800
CLUSTERS = 300
LAYER = "layer-1"
"""The layer that is asked, of every memory written here."""
LR = 0.1
"""Of generated memories with values."""
NETWORK_QUERIES = 64
FEW = 0.1
"""Share of the slots, of which a mask is small."""
COLUMNS = ("dataset", "label", "sample", "position", "coin")
_SETTINGS = {"lr": LR, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}

# ---- Keys


class GeneratedKeys:
    """What a relu leaves of clustered normal numbers: about half of it zeros, as with real keys."""

    origin = f"keys are the relu of normal numbers around {CLUSTERS} centres"

    def __init__(self, width: int, seed: int = 0, spread: float = 1.0) -> None:
        """`spread`: deviation of the centres; 0 for numbers without clusters."""
        self._seed = seed
        self._centres = spread * np.random.default_rng(seed).normal(size=(CLUSTERS, width)).astype(np.float32)

    def blocks(self, slots: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Clusters int64[b] of T slots and keys float32[b, d_in]: the second half of the slots has clusters of its
        own.
        """
        random = np.random.default_rng((self._seed, 1))
        for start in range(0, slots, BLOCK):
            second = np.arange(start, min(start + BLOCK, slots)) >= slots // 2
            cluster = random.integers(0, CLUSTERS // 2, len(second)) + second * (CLUSTERS // 2)
            yield cluster, self._around(cluster, random)

    def queries(self, count: int) -> Floats:
        """float32[n, d_in], around centres of the two halves in turn."""
        random = np.random.default_rng((self._seed, 2))
        cluster = random.integers(0, CLUSTERS // 2, count) + np.arange(count) % 2 * (CLUSTERS // 2)
        return self._around(cluster, random)

    def _around(self, cluster: NDArray[np.int64], random: np.random.Generator) -> Floats:
        noise = random.normal(size=(len(cluster), self._centres.shape[1])).astype(np.float32)
        keys: Floats = np.maximum(self._centres[cluster] + noise, 0)
        return keys


# ---- Memories that are written


def write_memory(
    path: Path, sources: Mapping[str, GeneratedKeys], slots: int, outputs: int = 0, query_set: int = 0
) -> None:
    """A memory of plain SGD, or of no optimizer if it has no values.

    Columns: half of the slots are of each `dataset`, either half contiguous; two slots in a row share a `position`;
    `coin` is a fair one.

    Args:
        sources: of the keys, by layer.
        outputs: d_out of every layer; 0 for no values.
        query_set: so many queries of the sources are the query set `test`.
    """
    queries = {name: source.queries(query_set or 1) for name, source in sources.items()}
    widths = {name: own.shape[1] for name, own in queries.items()}
    valued, rows = outputs > 0, max(1, outputs)
    header = Header(
        path,
        layers=[
            Layer(name, "sample", width, rows, affine(width, f"{name}.weight", None), values=valued)
            for name, width in widths.items()
        ],
        optimizer="SGD" if valued else "none",
        rule="sgd" if valued else "",
        reason="" if valued else "a benchmark's memory",
        initial={f"{name}.weight": np.zeros((rows, width), dtype=np.float32) for name, width in widths.items()},
    )
    writer, random = Writer(header), np.random.default_rng(8)
    coin = np.random.default_rng(7).random(slots) < 0.5
    factors = tuple(Factor(f"{name}.weight", 0, 1.0, 0.0) for name in sources)
    for step, blocks in enumerate(zip(*(source.blocks(slots) for source in sources.values()), strict=True)):
        cluster = blocks[0][0]
        slot = step * BLOCK + np.arange(len(cluster))
        columns = {
            "dataset": np.array(("first", "second"), dtype=object)[(slot >= slots // 2).astype(int)],
            "label": cluster % 10,
            "sample": random.integers(0, 60_000, len(slot)),
            "coin": coin[slot],
        }
        made = {
            name: [LayerRows(0, keys, _values(random, len(slot), outputs) if valued else None)]
            for name, (_, keys) in zip(sources, blocks, strict=True)
        }
        extent = Extent("sample", 0, len(slot), None, position=slot // 2)
        logs = [StepLog(step, True, step, (ParameterGroup(_SETTINGS),), factors)] if valued else []
        writer.append(Batch(step, columns, [extent], made, logs=logs))
    if query_set:
        writer.add_query_set(QuerySetArrays("test", queries, np.arange(query_set) % 10, None))
    writer.close()


def _values(random: np.random.Generator, count: int, width: int) -> Floats:
    """Normal numbers whose size differs from slot to slot by a factor of about ten, as those of a network do that has
    learned most of its samples.
    """
    sizes = np.exp(random.normal(size=(count, 1))).astype(np.float32)
    return random.standard_normal((count, width), dtype=np.float32) * sizes


def write_network(path: Path, slots: int, layers: int, width: int, query_set: int = 0) -> None:
    """A memory of several layers of one width each way, with values; keys have no clusters."""
    sources = {f"layer-{number}": GeneratedKeys(width, number, spread=0.0) for number in range(layers)}
    write_memory(path, sources, slots, width, query_set)


# ---- Questions


@dataclass(frozen=True, eq=False)
class Mask:
    """The slots whose `column` is `value`."""

    column: str
    value: Any
    stays: NDArray[np.bool_]
    """bool[T]."""

    @property
    def where(self) -> str:
        return self.column if isinstance(self.value, bool) else f"{self.column} = {self.value!r}"

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.stays)

    @cached_property
    def removed(self) -> NDArray[np.bool_]:
        return ~self.stays

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        return np.packbits(self.stays, bitorder="little")

    @property
    def is_small(self) -> bool:
        """Whether gathering the keys of its slots costs less than scoring all."""
        return len(self.slots) < FEW * len(self.stays)


@dataclass(frozen=True, eq=False)
class Groups:
    """A grouping of all slots by columns, in value order."""

    by: tuple[str, ...]
    numbers: NDArray[np.int64]
    """int64[T]: the group of each slot."""
    count: int
    """G."""

    @property
    def members(self) -> list[NDArray[np.bool_]]:
        """bool[T] of each group."""
        return [self.numbers == group for group in range(self.count)]


@dataclass(frozen=True, eq=False)
class Data:
    """A memory's keys as one matrix, its columns, and queries."""

    keys: Floats
    """float32[T, d_in], contiguous."""
    queries: Floats
    columns: dict[str, NDArray[Any]]

    def mask(self, column: str) -> Mask:
        """The slots that have the first slot's value; of `coin`, those where it is true."""
        value = True if column == "coin" else self.columns[column].item(0)
        return Mask(column, value, np.asarray(self.columns[column] == value, dtype=bool))

    def groups(self, *by: str) -> Groups:
        codes: Any = 0
        for name in by:
            values, own = np.unique(self.columns[name], return_inverse=True)
            codes = codes * len(values) + own
        present, numbers = np.unique(codes, return_inverse=True)
        return Groups(by, numbers, len(present))


def prepare(plan: Plan) -> None:
    """Write the run's memory and queries into its folder."""
    keys = GeneratedKeys(plan.width)
    write_memory(plan.memory, {LAYER: keys}, plan.slots)
    np.save(plan.folder / "queries.npy", keys.queries(max(plan.queries)))


def network(plan: Plan) -> Path:
    """A memory of three layers with values, a quarter as many slots, and a query set; written once."""
    path = plan.folder / "valued"
    if not path.exists():
        write_network(path, plan.slots // 4, 3, plan.width, NETWORK_QUERIES)
    return path


def read_memory(path: Path) -> Snapshot:
    """A memory whose segments are not kept in RAM."""
    return Snapshot.open(path, SegmentCache(0))


def load(plan: Plan) -> Data:
    """What `prepare` wrote."""
    return read(plan.memory, np.load(plan.folder / "queries.npy"))


def read(path: Path, queries: Floats) -> Data:
    memory = read_memory(path)
    space = memory.layer(LAYER).space
    return Data(matrix(memory.keys(LAYER)), queries, {name: np.asarray(memory.column(space, name)) for name in COLUMNS})


def matrix(rows: Rows) -> Floats:
    """All rows that a memory holds of a layer's keys or values, as one matrix."""
    found = np.empty((rows.rows, rows.width), dtype=np.float32)
    for start, block in rows.blocks(BLOCK):
        found[start : start + len(block)] = block
    return found


class Fresh:
    """Engines that know nothing yet of the questions to come, over keys and values that were already read from disk.

    They share the segments in memory, and nothing else.
    """

    def __init__(self, path: Path, backend: str | None) -> None:
        self._path, self._backend, self._segments = path, backend, SegmentCache()
        memory = self.snapshot()
        for layer in memory.layers.values():
            for read_rows in (memory.keys, memory.values) if layer.values else (memory.keys,):
                deque(read_rows(layer.name).blocks(BLOCK), maxlen=0)

    def snapshot(self) -> Snapshot:
        return Snapshot.open(self._path, self._segments)

    def engine(self) -> Engine:
        return Engine(self.snapshot(), backends.choose(self._backend), CACHE_BYTES, self._segments)

    def measure(self, ask: Callable[[Engine], A], repeats: int) -> tuple[list[float], A]:
        """Seconds of the first question to one new engine after the other, and the last answer.

        Nobody asked before: sums that were kept beside the keys are neither read nor written.
        """
        seconds = list[float]()
        with patch.object(durable_files, "LEAST_BYTES", sys.maxsize):
            for _ in range(repeats):
                with self.engine() as engine:
                    began = time.perf_counter()
                    answer = ask(engine)
                    seconds.append(time.perf_counter() - began)
        return seconds, answer
