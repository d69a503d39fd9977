"""Masked weights of networks trained under AdamW, beside the products and torch's own updates that they need.

Under AdamW no slot has a coefficient: each update is run again, as a whole and for the slots that stay. The least that
takes is, at each update, one product of values and keys for every weight, and one step of the optimizer.

Shapes: n slots of a step, d_in, d_out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import networks
from benchmarks.engines import Fresh
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot

WHERE = f"label < {networks.GROUPS // 2}"
TOLERANCE = 1e-4
"""Of the way that a block's weights went: values and keys are float32, and so are the updates that were made."""
_FLOORS = 3
"""A mask's part of a gradient whose whole all but cancels is divided by what rounding left of it: so many times what
float32 sums do to the oracle's own answer are not told from it.
"""
_SETTINGS = ("lr", "beta1", "beta2", "eps", "weight_decay")


@dataclass(frozen=True, eq=False)
class _Block:
    """A parameter block and the layer that holds it; no other layer does."""

    layer: Layer
    place: Parameter
    initial: NDArray[np.float32]

    @property
    def is_bias(self) -> bool:
        return self.place in self.layer.biases


def run(plan: Plan) -> Section:
    section = Section("adamw", "Masked weights under AdamW")
    steps = 20 if plan.quick else 100
    torch.manual_seed(0)
    for name, model, batches, count in (
        ("MLP, 784-800-800-10, batches of 256", networks.perceptron(), networks.images, steps),
        ("transformer of width 256, 1,024 tokens a batch", networks.Transformer(), networks.texts, steps // 4),
    ):
        memory = plan.folder / f"adamw-{len(section.rows)}"
        networks.train(model, batches, count, memory)
        section.rows += _rows(plan, memory, f"{name}, {count:,} updates", model)
    section.notes.append(
        f"The filter is {WHERE}: it leaves half of the slots. The products take the values of all slots times their "
        "keys, update by update; an embedding's are added up by index, and biases are sums. torch.optim.AdamW takes "
        "those gradients as it would in training. Neither follows the filter, which dualform does beside the whole, in "
        "float64. Keys and values were already read from disk."
    )
    return section


def _rows(plan: Plan, path: Path, name: str, model: nn.Module) -> Iterator[Row]:
    fresh = Fresh(path, plan.backend)
    fresh.read()
    snapshot = fresh.snapshot()
    blocks, gradients = list(_blocks(snapshot)), _Gradients(snapshot)
    ours: list[float] = []
    plain: dict[torch.dtype, list[float]] = {torch.float32: [], torch.float64: []}
    found: Mapping[str, Any] = {}
    for _ in range(min(3, plan.repeats)):
        (seconds,), found = fresh.measure(lambda engine: engine.weights(where=WHERE, allow_inexact=True), 1)
        ours.append(seconds)
        for dtype, measured in plain.items():
            measured.append(_plain(blocks, gradients, dtype))
    wrong = _wrong(blocks, gradients, found)
    timing = Timing.of(ours)
    for dtype, measured in plain.items():
        beside, kind = Timing.of(measured).seconds, str(dtype).removeprefix("torch.")
        yield Row(
            f"ablated weights, {name}",
            {OURS: Cell(timing.seconds, timing.best, timing.repeats, wrong=wrong)},
            f"products in {kind} and AdamW",
            beside,
            timing.seconds / beside,
            Target("at most", 3),
            f"{name.partition(',')[0]}, over {kind}",
        )


def _blocks(snapshot: Snapshot) -> Iterator[_Block]:
    initial = snapshot.initial()
    for layer in snapshot.layers.values():
        for place in layer.parameters:
            yield _Block(layer, place, place.stored_block_of(initial[place.name]))


class _Gradients:
    """Of each block at each update, of some slots."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.steps = snapshot.steps
        self._snapshot = snapshot
        self.settings = snapshot.table("parameter_groups").to_pandas().query("group == 0").set_index("step")
        self._step = {
            layer.name: np.asarray(snapshot.column(layer.space, "step")) for layer in snapshot.layers.values()
        }
        self._stays = {
            layer.name: np.asarray(snapshot.column(layer.space, "label")) < networks.GROUPS // 2
            for layer in snapshot.layers.values()
        }

    def arrays(self, layer: Layer, step: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """Values float32[n, d_out], keys float32[n, d_in], and which of the slots stay."""
        start, stop = np.searchsorted(self._step[layer.name], [step, step + 1]).tolist()
        keys, values = self._snapshot.keys(layer.name), self._snapshot.values(layer.name)
        return values.block(start, stop), keys.entry_block(start, stop), self._stays[layer.name][start:stop]


def _plain(blocks: list[_Block], gradients: _Gradients, dtype: torch.dtype) -> float:
    """Seconds of the products and of the optimizer's steps; what they need is at hand as they begin."""
    parameters = [nn.Parameter(torch.from_numpy(np.array(block.initial)).to(dtype)) for block in blocks]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    seconds = 0.0
    for step in range(gradients.steps):
        made = []
        for block in blocks:
            values, keys, _ = gradients.arrays(block.layer, step)
            made.append((torch.tensor(values, dtype=dtype), torch.tensor(keys, dtype=dtype)))
        rows = [
            inputs.argmax(1) if _is_lookup(block) else None for block, (_, inputs) in zip(blocks, made, strict=True)
        ]
        began = time.perf_counter()
        for parameter, block, number, (errors, inputs) in zip(parameters, blocks, rows, made, strict=True):
            if block.is_bias:
                parameter.grad = errors.sum(0)
            elif number is not None:
                parameter.grad = torch.zeros_like(parameter).index_add_(0, number, errors)
            else:
                parameter.grad = errors.T @ inputs
        optimizer.step()
        seconds += time.perf_counter() - began
    return seconds


def _is_lookup(block: _Block) -> bool:
    return block.layer.source == "row numbers" and not block.is_bias


def _wrong(blocks: list[_Block], gradients: _Gradients, found: Mapping[str, Any]) -> str:
    """Hold the ablated weights against AdamW's formulas in float64: the whole decides, what stays follows."""
    for block in blocks:
        right, way = _right(block, gradients, np.float64)
        off = np.linalg.norm(block.place.stored_block_of(np.asarray(found[block.place.name])) - right)
        if off <= TOLERANCE * way:
            continue
        floor = np.linalg.norm(_right(block, gradients, np.float32)[0] - right)
        if not off <= _FLOORS * floor:
            return (
                f"{block.place.block_name} is off by {off / way:.1e} of its way, of which {floor / way:.1e} is rounding"
            )
    return ""


def _right(block: _Block, gradients: _Gradients, dtype: type[np.floating[Any]]) -> tuple[NDArray[np.float64], float]:
    """The block as the slots that stay leave it, and how far all slots moved it; `dtype`: of what decides the scale."""
    initial = block.initial.astype(np.float64)
    whole, kept = initial.copy(), initial.copy()
    average, own, squares = (np.zeros_like(initial) for _ in range(3))
    for step in range(gradients.steps):
        values, keys, stays = gradients.arrays(block.layer, step)
        wide = values.astype(np.float64)
        other = np.ones((len(wide), 1)) if block.is_bias else keys.astype(np.float64)
        staying = _product(block, wide[stays], other[stays])
        every = _product(block, wide.astype(dtype), other.astype(dtype)).astype(np.float64)
        lr, beta1, beta2, eps, decay = (float(gradients.settings[name][step]) for name in _SETTINGS)
        average += (1 - beta1) * (every - average)
        own += (1 - beta1) * (staying - own)
        squares = beta2 * squares + (1 - beta2) * every * every
        factor = lr / (1 - beta1 ** (step + 1)) / (np.sqrt(squares / (1 - beta2 ** (step + 1))) + eps)
        whole, kept = (1 - lr * decay) * whole - factor * average, (1 - lr * decay) * kept - factor * own
    return kept, float(np.linalg.norm(whole - initial))


def _product(block: _Block, values: NDArray[Any], keys: NDArray[Any]) -> NDArray[Any]:
    """The block's gradient, as the block is stored, in their type."""
    made: NDArray[Any] = values.T @ keys
    if block.is_bias:
        return made[:, 0]
    return made.T if block.place.transposed else made
