"""The whole network's weights with one dataset masked out, beside the matrix products that they need.

Shapes: b slots of a block, d_in, d_out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.blocks import key_value_blocks, sgd_coefficients
from benchmarks.engines import Fresh
from benchmarks.keys import read_study
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing
from dualform.store.snapshot import Snapshot

TOLERANCE = 1e-6
"""Of the largest weight: they are returned in float32."""
FIRST, AGAIN = Target("at most", 2), Target("at most", 0.010, "s")
QUESTION = "ablated weights of all layers"


def run(plan: Plan) -> Section:
    section = Section("weights", "Masked weights")
    if plan.study is None or plan.quick:
        why = "needs a whole recorded continual study" if plan.study is None else "not in a quick run"
        section.rows = [
            Row(f"{QUESTION}, {when}", {OURS: Cell(why_not=why)}, target=target)
            for when, target in (("first time", FIRST), ("again", AGAIN))
        ]
        return section
    memory = read_study(plan.study)
    datasets = memory.column("sample", "dataset")
    stays = np.asarray(datasets != datasets[-1], dtype=bool)
    where = f"dataset <> '{datasets[-1]}'"
    fresh = Fresh(plan.study, plan.backend)
    fresh.read(int(np.flatnonzero(stays)[-1]) + 1)
    first, again, weights = _ours(fresh, where, min(3, plan.repeats))
    single, double, right = _products(memory, stays, plan.study)
    wrong = wrong_weights(weights, right)
    for kind, product in (("float32", single), ("float64", double)):
        section.rows.append(
            Row(
                f"{QUESTION}, first time",
                {OURS: Cell(first.seconds, first.best, first.repeats, wrong=wrong)},
                f"their plain products in {kind}",
                product,
                first.seconds / product,
                FIRST,
                f"first time, over {kind}",
            )
        )
    section.rows.append(
        Row(
            f"{QUESTION}, again",
            {OURS: Cell(again.seconds, again.best, again.repeats, wrong=wrong)},
            target=AGAIN,
            short="again",
        )
    )
    section.notes.append(
        f"The filter is {where}: it leaves {int(stays.sum()):,} of {len(stays):,} slots. The products take the values "
        "of the slots that stay times their keys, block by block; reading, conversion and the sum over blocks' edges "
        "are not counted. dualform adds in float64. The keys and values were already read from disk."
    )
    return section


def _ours(fresh: Fresh, where: str, repeats: int) -> tuple[Timing, Timing, Mapping[str, Any]]:
    first: list[float] = []
    again: list[float] = []
    weights: Mapping[str, Any] = {}
    for _ in range(repeats):
        with fresh.engine() as engine:
            for measured in (first, again):
                began = time.perf_counter()
                weights = engine.weights(where=where)
                measured.append(time.perf_counter() - began)
    return Timing.of(first), Timing.of(again), weights


def _products(
    memory: Snapshot, stays: NDArray[np.bool_], study: Path
) -> tuple[float, float, dict[str, NDArray[np.float64]]]:
    """Seconds of the products of all layers in float32 and in float64, and the weights, from the latter."""
    initial, step = memory.initial(), np.asarray(memory.column("sample", "step"))
    single = double = 0.0
    right: dict[str, NDArray[np.float64]] = {}
    for layer in memory.layers.values():
        (weight_name,), biases = (p.name for p in layer.weights), [p.name for p in layer.biases]
        weight = initial[weight_name].astype(np.float64)
        of_weight = sgd_coefficients(memory, weight_name)
        right |= {name: initial[name].astype(np.float64) for name in biases}
        of_bias = {name: sgd_coefficients(memory, name) for name in biases}
        for slots, keys, values in key_value_blocks(memory, layer.name, stays):
            wide_keys, wide_values = keys.astype(np.float64), values.astype(np.float64)
            scaled = np.ascontiguousarray((wide_values * of_weight[step[slots]][:, None]).T)
            single += _seconds(np.ascontiguousarray(values.T), keys)[0]
            took, product = _seconds(scaled, wide_keys)
            double += took
            weight += product
            for name in biases:
                right[name] += of_bias[name][step[slots]] @ wide_values
        right[weight_name] = weight
    return single, double, right


def _seconds(values: NDArray[Any], keys: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    began = time.perf_counter()
    product = values @ keys
    return time.perf_counter() - began, product


def wrong_weights(found: Mapping[str, Any], right: dict[str, NDArray[np.float64]]) -> str:
    if set(found) != set(right):
        return f"parameters {sorted(found)} where {sorted(right)} are right"
    for name, expected in right.items():
        off = np.abs(np.asarray(found[name], dtype=np.float64) - expected).max() / np.abs(expected).max()
        if not off <= TOLERANCE:
            return f"{name} is off by {off:.1e} of its largest number"
    return ""
