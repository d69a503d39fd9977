"""Dot products of gradients over several layers, beside the products that they are made of.

Shapes: T slots, n examples, d of a key or value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dualform
from benchmarks import contest, oracle
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target
from benchmarks.sections.topk import K, against_peers, asked
from benchmarks.timing import race
from benchmarks.written import write_network
from dualform import Engine, ExampleGradients, LayerGradients
from dualform.store.rows import Rows
from dualform.store.snapshot import Snapshot

LAYERS, WIDTH = 3, 400
TARGET = Target("at most", 0.6)


def run(plan: Plan) -> Section:
    section = Section("gradients", "Dot products of gradients")
    folder = plan.folder / "network"
    write_network(folder, plan.slots, LAYERS, WIDTH)
    matrices = _matrices(folder)
    with dualform.open(folder, backend=plan.backend) as engine:
        for count in (1, 64):
            section.rows.append(_row(plan, engine, matrices, count))
    section.notes.append(
        f"{plan.slots:,} slots in {LAYERS} layers of {WIDTH} + {WIDTH} generated numbers; of each example a row of "
        "generated numbers in every layer. torch and NumPy hold all matrices and multiply them as they stand, on all "
        "cores. dualform opened the folder, and gives the ids of a float64 brute force."
    )
    return section


def _matrices(folder: Path) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """By layer, keys and values."""
    memory = Snapshot.open(folder)
    return {name: (_whole(memory.keys(name)), _whole(memory.values(name))) for name in memory.layers}


def _whole(stored: Rows) -> NDArray[np.float32]:
    found = np.empty((stored.rows, stored.width), dtype=np.float32)
    for start, block in stored.blocks(1 << 14):
        found[start : start + len(block)] = block
    return found


def _row(
    plan: Plan, engine: Engine, matrices: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]], count: int
) -> Row:
    rng = np.random.default_rng(count)
    given = {
        name: LayerGradients(
            np.maximum(rng.standard_normal((count, WIDTH), dtype=np.float32), 0),
            rng.standard_normal((count, WIDTH), dtype=np.float32),
            np.arange(count),
        )
        for name in matrices
    }
    right = best(matrices, given, count)
    contestants: dict[str, Callable[[], Any]] = {
        OURS: partial(engine.topk, "*", ExampleGradients(count, given), K, score="gradient"),
        "torch": lambda: _torch(matrices, given).topk(K, dim=1).indices,
        "NumPy": lambda: np.argpartition(_numpy(matrices, given), -K, axis=1)[:, -K:],
    }
    ran = race(contestants, plan.repeats, plan.patience)

    cells = {name: contest.cell(name, own, contest.against(right)) for name, own in ran.items()}
    short = asked(count).replace("queries", "examples").replace("query", "example")
    return against_peers(f"top-{K} by gradient over {LAYERS} layers, {short}", short, cells, TARGET)


def _torch(matrices: Mapping[str, Any], given: Mapping[str, LayerGradients]) -> torch.Tensor:
    found: Any = 0
    for name, own in matrices.items():
        keys, values, q, e = map(torch.from_numpy, (*own, given[name].keys, given[name].errors))
        found = found + (q @ keys.T) * (e @ values.T)
    return found  # type: ignore[no-any-return]


def _numpy(matrices: Mapping[str, Any], given: Mapping[str, LayerGradients]) -> NDArray[np.float32]:
    found: Any = 0
    for name, (keys, values) in matrices.items():
        found = found + (given[name].keys @ keys.T) * (given[name].errors @ values.T)
    return found  # type: ignore[no-any-return]


def best(
    matrices: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]],
    given: Mapping[str, LayerGradients],
    count: int,
) -> oracle.Best:
    """The right answer: candidates from float64 products, ranked by sums of products that are rounded once each."""
    slots, scores = [], []
    rows = len(next(iter(matrices.values()))[0])
    every = np.empty((count, rows))
    for start in range(0, rows, oracle.BLOCK):
        part, total = slice(start, start + oracle.BLOCK), np.zeros(())
        for name, (keys, values) in matrices.items():
            own = given[name]
            of_keys = own.keys.astype(np.float64) @ keys[part].astype(np.float64).T
            total = total + of_keys * (own.errors.astype(np.float64) @ values[part].astype(np.float64).T)
        every[:, part] = total
    for example in range(count):
        near = np.argpartition(every[example], -(K + oracle.SPARE))[-(K + oracle.SPARE) :]
        exact = np.zeros(len(near))
        for name, (keys, values) in matrices.items():
            own = given[name]
            of_keys = oracle.exact_scores(keys[near], own.keys[example])
            exact += of_keys * oracle.exact_scores(values[near], own.errors[example])
        order = np.lexsort((near, -exact))[:K]
        slots.append(near[order])
        scores.append(exact[order])
    return oracle.Best(slots, scores, np.zeros(count))
