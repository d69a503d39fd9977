"""The memories and the questions: generated keys, queries, masks, groups.

Shapes: T slots, n queries, d_in and d_out of the layer, G groups, b slots of a block.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

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
COLUMNS = ("dataset", "label", "sample", "position", "coin")
_SETTINGS = {"lr": LR, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}

# ---- Keys


class GeneratedKeys:
    """What a relu leaves of clustered normal numbers: about half of it zeros, as with real keys."""

    origin = f"keys are the relu of normal numbers around {CLUSTERS} centres"

    def __init__(self, width: int, seed: int = 0) -> None:
        self._seed = seed
        self._centres = np.random.default_rng(seed).normal(size=(CLUSTERS, width)).astype(np.float32)

    def blocks(self, slots: int) -> Iterator[tuple[Floats, dict[str, NDArray[Any]]]]:
        """Keys float32[b, d_in] and columns of T slots: half of each dataset, either half contiguous."""
        random = np.random.default_rng((self._seed, 1))
        for start in range(0, slots, BLOCK):
            slot = np.arange(start, min(start + BLOCK, slots))
            second = slot >= slots // 2
            cluster = random.integers(0, CLUSTERS // 2, len(slot)) + second * (CLUSTERS // 2)
            columns = {
                "dataset": np.array(("first", "second"), dtype=object)[second.astype(int)],
                "label": cluster % 10,
                "sample": random.integers(0, 60_000, len(slot)),
            }
            yield self._around(cluster, random), columns

    def queries(self, count: int) -> Floats:
        """float32[n, d_in], around centres of the two datasets in turn."""
        random = np.random.default_rng((self._seed, 2))
        cluster = random.integers(0, CLUSTERS // 2, count) + np.arange(count) % 2 * (CLUSTERS // 2)
        return self._around(cluster, random)

    def _around(self, cluster: NDArray[np.int64], random: np.random.Generator) -> Floats:
        noise = random.normal(size=(len(cluster), self._centres.shape[1])).astype(np.float32)
        keys: Floats = np.maximum(self._centres[cluster] + noise, 0)
        return keys


# ---- Memories that are written


def write_memory(path: Path, source: GeneratedKeys, slots: int, outputs: int = 0, query_set: int = 0) -> None:
    """A memory of one layer. Two slots in a row share a `position`; `coin` is a fair one.

    Args:
        outputs: d_out; 0 for no values.
        query_set: so many queries of the source are its query set `test`.
    """
    coin, rng = np.random.default_rng(7).random(slots) < 0.5, np.random.default_rng(8)
    width = source.queries(1).shape[1]

    def batches() -> Iterator[tuple[dict[str, Any], dict[str, LayerRows], NDArray[np.int64]]]:
        start = 0
        for keys, columns in source.blocks(slots):
            slot = np.arange(start, start + len(keys))
            values = _values(rng, len(keys), outputs) if outputs else None
            yield {**columns, "coin": coin[slot]}, {LAYER: LayerRows(0, keys, values)}, slot // 2
            start += len(keys)

    sets = []
    if query_set:
        sets.append(QuerySetArrays("test", {LAYER: source.queries(query_set)}, np.arange(query_set) % 10, None))
    _write(path, {LAYER: (width, outputs)}, batches(), sets)


def write_network(path: Path, slots: int, layers: int, width: int, query_set: int = 0) -> None:
    """A memory of several layers of one width each way: keys as after a relu, and values. `query_set`: as of
    `write_memory`.
    """
    rng, names = np.random.default_rng(10), [f"layer-{number}" for number in range(layers)]

    def rows(count: int) -> LayerRows:
        keys = np.maximum(rng.standard_normal((count, width), dtype=np.float32), 0)
        return LayerRows(0, keys, _values(rng, count, width))

    def batches() -> Iterator[tuple[dict[str, Any], dict[str, LayerRows], None]]:
        for start in range(0, slots, BLOCK):
            sample = np.arange(start, min(start + BLOCK, slots))
            dataset = np.array(("first", "second"), dtype=object)[(sample >= slots // 2).astype(int)]
            columns = {"dataset": dataset, "label": sample % 10}
            yield {**columns, "sample": sample}, {name: rows(len(sample)) for name in names}, None

    sets = []
    if query_set:
        queries = {name: rows(query_set).keys for name in names}
        sets.append(QuerySetArrays("test", queries, np.arange(query_set) % 10, None))
    _write(path, dict.fromkeys(names, (width, width)), batches(), sets)


def _values(rng: np.random.Generator, count: int, width: int) -> Floats:
    """Normal numbers whose size differs from slot to slot by a factor of about ten, as those of a network do that has
    learned most of its samples.
    """
    sizes = np.exp(rng.normal(size=(count, 1))).astype(np.float32)
    return rng.standard_normal((count, width), dtype=np.float32) * sizes


def _write(
    path: Path,
    shapes: Mapping[str, tuple[int, int]],
    batches: Iterable[tuple[dict[str, Any], dict[str, LayerRows], NDArray[np.int64] | None]],
    query_sets: Sequence[QuerySetArrays],
) -> None:
    """A memory of plain SGD, or of no optimizer where layers have no outputs. `shapes`: d_in and d_out by layer."""
    valued = all(outputs for _, outputs in shapes.values())
    header = Header(
        path,
        layers=[
            Layer(name, "sample", inputs, max(1, outputs), affine(inputs, f"{name}.weight", None), values=valued)
            for name, (inputs, outputs) in shapes.items()
        ],
        optimizer="SGD" if valued else "none",
        rule="sgd" if valued else "",
        reason="" if valued else "a benchmark's memory",
        initial={
            f"{name}.weight": np.zeros((max(1, outputs), inputs), dtype=np.float32)
            for name, (inputs, outputs) in shapes.items()
        },
    )
    writer = Writer(header)
    factors = tuple(Factor(f"{name}.weight", 0, 1.0, 0.0) for name in shapes)
    for step, (columns, rows, position) in enumerate(batches):
        extent = Extent("sample", 0, len(columns["sample"]), None, position=position)
        logs = [StepLog(step, True, step, (ParameterGroup(_SETTINGS),), factors)] if valued else []
        writer.append(Batch(step, columns, [extent], {name: [own] for name, own in rows.items()}, logs=logs))
    for query_set in query_sets:
        writer.add_query_set(query_set)
    writer.close()


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


@dataclass(frozen=True, eq=False)
class Groups:
    """A grouping of all slots by columns, in value order."""

    by: tuple[str, ...]
    numbers: NDArray[np.int64]
    """int64[T]: the group of each slot."""
    count: int
    """G."""

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], *by: str) -> Groups:
        codes: Any = 0
        for name in by:
            values, own = np.unique(np.asarray(columns[name]), return_inverse=True)
            codes = codes * len(values) + own
        present, numbers = np.unique(codes, return_inverse=True)
        return cls(by, numbers, len(present))


@dataclass(frozen=True, eq=False)
class Data:
    """A memory's keys as one matrix, its columns, and queries."""

    keys: Floats
    """float32[T, d_in], contiguous."""
    queries: Floats
    columns: dict[str, NDArray[Any]]

    @property
    def coin(self) -> Mask:
        """Half of the slots, at random."""
        return self._mask("coin", True)

    @property
    def half(self) -> Mask:
        """Half of the slots, contiguous."""
        return self._mask("dataset", self.columns["dataset"][0])

    @property
    def tiny(self) -> Mask:
        """The slots of one sample."""
        return self._mask("sample", int(self.columns["sample"][0]))

    def groups(self, *by: str) -> Groups:
        return Groups.of(self.columns, *by)

    def _mask(self, column: str, value: Any) -> Mask:
        return Mask(column, value, np.asarray(self.columns[column] == value, dtype=bool))


def prepare(plan: Plan) -> None:
    """Write the run's memory and queries into its folder."""
    keys = GeneratedKeys(plan.width)
    write_memory(plan.memory, keys, plan.slots)
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


def matrix(rows: Any) -> Floats:
    """All rows that a memory holds of a layer's keys or values, as one matrix."""
    found = np.empty((rows.rows, rows.width), dtype=np.float32)
    for start, block in rows.blocks(1 << 14):
        found[start : start + len(block)] = block
    return found


class Fresh:
    """Engines that know nothing yet of the questions to come, over keys and values that were already read from disk.

    They share the segments in memory, and nothing else.
    """

    def __init__(self, path: Path, backend: str | None, slots: int | None = None) -> None:
        """`slots`: only the first ones are read; None for all."""
        self._path, self._backend = path, backend
        self._segments = SegmentCache()
        memory = self.snapshot()
        for layer in memory.layers.values():
            keys = memory.keys(layer.name)
            last = keys.entries if slots is None else slots
            last_row = last if keys.row_of_entry is None else int(keys.row_of_entry[:last].max()) + 1
            for start in range(0, last_row, BLOCK):
                keys.block(start, min(start + BLOCK, last_row))
            for start in range(0, last if layer.values else 0, BLOCK):
                memory.values(layer.name).block(start, min(start + BLOCK, last))

    def snapshot(self) -> Snapshot:
        return Snapshot.open(self._path, self._segments)

    def engine(self) -> Engine:
        return Engine(self.snapshot(), backends.choose(self._backend), CACHE_BYTES, self._segments)

    def measure(self, ask: Callable[[Engine], A], repeats: int) -> tuple[list[float], A]:
        """Seconds of the first question to one new engine after the other, and the last answer.

        Nobody asked before: sums that were kept beside the keys are neither read nor written.
        """
        seconds, least = list[float](), durable_files.LEAST_BYTES
        durable_files.LEAST_BYTES = sys.maxsize
        for _ in range(repeats):
            with self.engine() as engine:
                began = time.perf_counter()
                answer = ask(engine)
                seconds.append(time.perf_counter() - began)
        durable_files.LEAST_BYTES = least
        return seconds, answer
