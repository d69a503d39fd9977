"""Memories of several shards, of a few layers and spaces, with steps whose rows the shards share out unevenly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualform.store.batch import Batch, Ending, Extent, Factor, Header, LayerRows, ParameterGroup, StepLog
from dualform.store.layer import Layer, affine
from dualform.store.writing.writer import Writer

LAYERS = (
    Layer("plain", "sample", 5, 3, affine(5, "plain.weight", "plain.bias")),
    Layer("repeated", "sample", 6, 4, affine(6, "repeated.weight", None), repeats=True),
    Layer("grouped", "sample", 4, 4, affine(2, "grouped.weight", None), groups=2),
    Layer("late", "sample", 3, 2, affine(3, "late.weight", None)),
)
"""`late` has no slots at even steps, and none in the last shard."""
SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False,
}  # fmt: skip


def wide(rng: np.random.Generator, shape: tuple[int, int], spread: int) -> np.ndarray:
    """float32 numbers of both signs, whose sizes lie up to 2^spread apart; some are 0."""
    numbers = rng.normal(size=shape) * np.exp2(rng.integers(-spread, 1, shape))
    return np.where(rng.random(shape) < 0.2, 0.0, numbers).astype(np.float32)


def write(
    path: Path, sizes: list[list[int]], seed: int = 0, spread: int = 10, finish: bool = True, commit: bool = True
) -> None:
    """A memory with a shard for each of `sizes`, which has the rows of each step. What is not committed has the same
    first weights whatever the seed is, and ends nowhere.
    """
    rng = np.random.default_rng(seed)
    drawn = rng if commit else np.random.default_rng(0)
    initial = {
        block.name: drawn.normal(size=(layer.d_out, layer.weight_width) if block.start < layer.d_in else layer.d_out)
        for layer in LAYERS
        for block in layer.parameters
    }
    initial = {name: own.astype(np.float32) for name, own in initial.items()}
    header = Header(
        path, LAYERS, optimizer="SGD", rule="sgd", reason="", initial=initial, skipped={}, label_names={},
        settings={name: "BOOLEAN" if isinstance(own, bool) else "DOUBLE" for name, own in SETTINGS.items()},
    )  # fmt: skip
    count = len(sizes)
    seconds = None if commit else 0.0
    writers = [Writer(header, shard_number=n, shards=count, journal_seconds=seconds) for n in range(count)]
    inputs = wide(rng, (7, 6), spread)
    for step in range(len(sizes[0])):
        for number, writer in enumerate(writers):
            rows = sizes[number][step]
            writer.append(_batch(rng, step, rows, inputs, spread, number < count - 1 or count == 1))
            if commit and step == 3:
                writer.commit()
    for number, writer in reversed(list(enumerate(writers))):
        if not commit or (not finish and number == count - 1):
            writer.abandon()
        else:
            writer.close(Ending(final=initial)) if number == 0 else writer.close()


def _batch(rng: np.random.Generator, step: int, rows: int, inputs: np.ndarray, spread: int, late: bool) -> Batch:
    sample = rng.integers(0, len(inputs), rows)
    said = {
        "dataset": np.array([["first", "second", None][i % 3] for i in sample], dtype=object),
        "label": np.ma.MaskedArray(sample % 4, mask=sample % 7 == 0),
        "sample": sample,
    }
    given = {layer.name: wide(rng, (rows, layer.d_in), spread) for layer in LAYERS} | {"repeated": inputs[sample]}
    layers = {
        layer.name: [LayerRows(0, given[layer.name], rng.normal(size=(rows, layer.d_out)).astype(np.float32))]
        for layer in LAYERS
        if layer.name != "late" or (late and step % 2)
    }
    factors = tuple(Factor(block.name, 0, 0.5, 1e-8) for layer in LAYERS for block in layer.parameters)
    log = StepLog(step, True, step, (ParameterGroup(SETTINGS),), factors)
    return Batch(step, said, [Extent("sample", 0, rows, None)], layers, logs=[log])


SIZES = [[3, 4, 2, 5, 1, 6], [2, 2, 4, 3, 5, 1], [1, 3, 3, 2, 2, 4]]
WIDTHS = {layer.name: layer.d_in for layer in LAYERS}


def queries(layer, count=3, seed=5):
    return np.random.default_rng(seed).normal(size=(count, WIDTHS[layer])).astype(np.float32)


def same(one, other):
    names = ("ids", "flat_scores", "sums", "counts", "values", "ranks", "cumulative", "totals", "effective_slots")
    for name in names:
        own = [getattr(answer, name, None) for answer in (one, other)]
        assert [part is None for part in own] in ([True, True], [False, False]), name
        assert own[0] is None or own[0].tobytes() == own[1].tobytes(), name
    assert getattr(one, "groups", None) == getattr(other, "groups", None)
    assert (one.scan.slots_scanned, one.scan.slots_matching) == (other.scan.slots_scanned, other.scan.slots_matching)
