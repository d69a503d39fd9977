"""Small memories made straight through the writer, and everything they should read back as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualform.store.batch import Batch, Defect, Factor, LayerRows, ParameterGroup, StepLog
from dualform.store.layer import Layer, affine
from dualform.store.writer import Writer

SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False,
}  # fmt: skip
LAYERS = (
    Layer("layer-0", 6, 5, affine(6, "layer-0.weight", "layer-0.bias"), "sample", repeats=True, values=True),
    Layer("layer-1", 5, 3, affine(5, "layer-1.weight", None), "sample", repeats=False, values=True),
)


@dataclass
class Expected:
    """What was appended, concatenated over all batches."""

    keys: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    columns: dict[str, list[Any]]


def batch(rng: np.random.Generator, step: int, rows: int, inputs: np.ndarray) -> Batch:
    """One step of `rows` samples whose first layer sees rows of `inputs` again and again."""
    sample = rng.integers(0, len(inputs), rows)
    slots = {
        "row": np.arange(rows, dtype=np.int32),
        "position": np.ma.masked_all(rows, dtype=np.int64),
        "dataset": np.array([["first", "zweites ü", None][i % 3] for i in sample], dtype=object),
        "label": np.ma.MaskedArray(sample % 10, mask=sample % 7 == 0),
        "sample": sample,
        "weight": rng.normal(size=rows),
        "seen": sample % 2 == 0,
    }
    layers = {
        "layer-0": LayerRows(inputs[sample], rng.normal(size=(rows, 5)).astype(np.float32)),
        "layer-1": LayerRows(
            rng.normal(size=(rows, 5)).astype(np.float32), rng.normal(size=(rows, 3)).astype(np.float32)
        ),
    }
    group = ParameterGroup(SETTINGS)
    factors = tuple(Factor(name, 0, 0.5, 1e-8) for name in ("layer-0.weight", "layer-0.bias", "layer-1.weight"))
    defects = [Defect(step, "layer-1", "made up")] if step == 2 else []
    return Batch(step, {"sample": slots}, layers, [StepLog(step, True, step, (group,), factors)], defects)


def open_writer(path: Path, **options: Any) -> Writer:
    initial = {"layer-0.weight": np.ones((5, 6), np.float32), "layer-0.bias": np.zeros(5, np.float32)}
    return Writer(
        path,
        layers=LAYERS,
        skipped={"norm": "no tap for LayerNorm"},
        optimizer="SGD",
        rule="sgd",
        reason="",
        initial=initial | {"layer-1.weight": np.ones((3, 5), np.float32)},
        momentum={},
        label_names={"first": ["zero", "one"]},
        **options,
    )


def write(path: Path, sizes: list[int], seed: int = 0, commit_every: int = 2, finish: bool = True) -> Expected:
    """A memory of one step per entry of `sizes`, with a probe and final weights."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    inputs[0], inputs[1] = 0.0, -0.0
    batches = [batch(rng, step, rows, inputs) for step, rows in enumerate(sizes)]
    writer = open_writer(path)
    for step, one in enumerate(batches):
        writer.append(one)
        if step % commit_every == commit_every - 1:
            writer.commit()
    if finish:
        writer.add_probe(
            "test",
            queries={"layer-0": inputs, "layer-1": rng.normal(size=(12, 5)).astype(np.float32)},
            labels=np.arange(12),
            outputs=rng.normal(size=(12, 3)).astype(np.float32),
        )
        writer.set_final({"layer-0.weight": np.full((5, 6), 2, np.float32)})
        writer.close()
    else:
        writer.abandon()
    columns: dict[str, list[Any]] = {"slot": list(range(sum(sizes)))}
    columns["step"] = [one.step for one in batches for _ in one.slots["sample"]["row"]]
    for name in batches[0].slots["sample"]:
        columns[name] = [value for one in batches for value in one.slots["sample"][name].tolist()]
    return Expected(
        keys={layer.name: np.concatenate([b.layers[layer.name].keys for b in batches]) for layer in LAYERS},
        values={layer.name: np.concatenate([b.layers[layer.name].values for b in batches]) for layer in LAYERS},
        columns=columns,
    )
