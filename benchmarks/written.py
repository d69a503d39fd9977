"""The benchmark's memories, written through the store's own writer.

Shapes: T slots, d_in and d_out of the layer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BLOCK, LAYER, Source
from dualform.store.batch import Batch, Extent, Factor, LayerRows, ParameterGroup, StepLog
from dualform.store.header import Header
from dualform.store.layer import Layer, affine
from dualform.store.query_sets import QuerySetArrays
from dualform.store.writer import Writer

LR = 0.1
_WEIGHT = f"{LAYER}.weight"
_SETTINGS = {"lr": LR, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}


def write_memory(path: Path, source: Source, slots: int, outputs: int = 0, query_set: int = 0) -> None:
    """A memory of one layer. Two slots in a row share a `position`; `coin` is a fair one. With `query_set`, so many
    queries of the source are its query set `test`.

    With `outputs`, d_out, it has generated values, as of plain SGD: normal numbers, whose size differs from slot to
    slot by a factor of about ten, as those of a network do that has learned most of its samples.
    """
    coin, rng = np.random.default_rng(7).random(slots) < 0.5, np.random.default_rng(8)
    writer: Writer | None = None
    start = 0
    for step, block in enumerate(source.blocks(slots)):
        count, width = block.keys.shape
        writer = writer or _open(path, width, outputs)
        slot = np.arange(start, start + count)
        samples = {**block.columns, "coin": coin[slot]}
        extent = Extent("sample", 0, count, None, position=slot // 2)
        values = _values(rng, count, outputs) if outputs else None
        logs = [_log(step)] if outputs else []
        writer.append(Batch(step, samples, [extent], {LAYER: [LayerRows(0, block.keys, values)]}, logs=logs))
        start += count
    if writer is not None:
        if query_set:
            queries = source.queries(query_set)
            writer.add_query_set(QuerySetArrays("test", {LAYER: queries}, np.arange(query_set) % 10, None))
        writer.close()


def write_network(path: Path, slots: int, layers: int, width: int) -> None:
    """A memory of several layers of one width each way: keys as behind a relu, values as in `write_memory`."""
    rng, names = np.random.default_rng(10), [f"layer-{number}" for number in range(layers)]
    weights = {name: f"{name}.weight" for name in names}
    header = Header(
        path,
        layers=[Layer(name, "sample", width, width, affine(width, weights[name], None)) for name in names],
        optimizer="SGD",
        rule="sgd",
        reason="",
        initial={weight: np.zeros((width, width), dtype=np.float32) for weight in weights.values()},
    )
    writer = Writer(header)
    for step, start in enumerate(range(0, slots, BLOCK)):
        count = min(BLOCK, slots - start)
        rows = {
            name: [
                LayerRows(
                    0,
                    np.maximum(rng.standard_normal((count, width), dtype=np.float32), 0),
                    _values(rng, count, width),
                )
            ]
            for name in names
        }
        factors = tuple(Factor(weight, 0, 1.0, 0.0) for weight in weights.values())
        log = StepLog(step, True, step, (ParameterGroup(_SETTINGS),), factors)
        sample = np.arange(start, start + count)
        said = {"dataset": np.full(count, "generated", dtype=object), "label": sample % 10, "sample": sample}
        writer.append(Batch(step, said, [Extent("sample", 0, count, None)], rows, logs=[log]))
    writer.close()


def _values(rng: np.random.Generator, count: int, width: int) -> NDArray[np.float32]:
    sizes = np.exp(rng.normal(size=(count, 1))).astype(np.float32)
    return rng.standard_normal((count, width), dtype=np.float32) * sizes


def _log(step: int) -> StepLog:
    return StepLog(step, True, step, (ParameterGroup(_SETTINGS),), (Factor(_WEIGHT, 0, 1.0, 0.0),))


def _open(path: Path, width: int, outputs: int) -> Writer:
    initial = {_WEIGHT: np.zeros((max(1, outputs), width), dtype=np.float32)}
    header = Header(
        path,
        layers=[Layer(LAYER, "sample", width, max(1, outputs), affine(width, _WEIGHT, None), values=bool(outputs))],
        optimizer="SGD" if outputs else "none",
        rule="sgd" if outputs else "",
        reason="" if outputs else "a benchmark's memory",
        initial=initial,
    )
    return Writer(header)
