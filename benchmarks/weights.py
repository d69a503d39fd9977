"""Ablated weights of whole networks, compared with plain matrix products.

Shapes: b slots of an update, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.data import LR, Floats, Fresh, network, read_memory
from benchmarks.harness import OURS, Cell, Plan, Section, Target
from benchmarks.recording import GROUPS, Transformer, perceptron, texts, train_adamw, vectors
from dualform.store.layer import Layer, Parameter
from dualform.store.reading.snapshot import Snapshot

BLOCK = 8192
Doubles = NDArray[np.float64]

# ---- Under SGD

FIRST, AGAIN = Target("at most", 2), Target("at most", 0.010, "s")
QUESTION = "ablated weights of all layers"
OF_LARGEST = 1e-6
"""Of the largest weight: they are returned in float32."""


def weights(plan: Plan, section: Section) -> None:
    """With one dataset masked out."""
    path = network(plan)
    memory = read_memory(path)
    stays = np.asarray(memory.column("sample", "dataset") == "first", dtype=bool)
    fresh = Fresh(path, plan.backend)
    first: list[float] = []
    again: list[float] = []
    for _ in range(plan.few):
        with fresh.engine() as engine:
            for measured in (first, again):
                began = perf_counter()
                found = engine.weights(where="dataset = 'first'", allow_inexact=True)
                measured.append(perf_counter() - began)
    products, right = _products(memory, stays)
    wrong = wrong_weights(found, right)
    for kind, seconds in products.items():
        cells, beside = {OURS: Cell.of(first, wrong=wrong)}, f"their plain products in {kind}"
        section.compare(f"{QUESTION}, first time", cells, beside, FIRST, seconds=seconds)
    section.alone(f"{QUESTION}, again", Cell.of(again, wrong=wrong), AGAIN)
    section.notes.append(
        f"Of {len(memory.layers)} layers with {len(stays):,} slots, of which a filter leaves {int(stays.sum()):,}. The "
        "products take the values of the slots that stay times their keys, block by block; reading and conversion are "
        "not counted. dualform adds in float64. The keys and values were already read from disk."
    )


def _products(memory: Snapshot, stays: NDArray[np.bool_]) -> tuple[dict[str, float], dict[str, Doubles]]:
    """Seconds of the products of all layers in float32 and in float64, and the weights, from the latter."""
    seconds = {"float32": 0.0, "float64": 0.0}
    right = {name: initial.astype(np.float64) for name, initial in memory.initial().items()}
    for layer in memory.layers.values():
        (place,) = layer.parameters
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        for start in range(0, len(stays), BLOCK):
            stop = min(start + BLOCK, len(stays))
            own = stays[start:stop]
            if not own.any():
                continue
            inputs, errors = keys.entry_block(start, stop)[own], values.block(start, stop)[own]
            for kind in seconds:
                left, of_keys = np.ascontiguousarray(errors.T.astype(kind)), inputs.astype(kind)
                began = perf_counter()
                product = left @ of_keys
                seconds[kind] += perf_counter() - began
            right[place.name] -= LR * product
    return seconds, right


def wrong_weights(found: Mapping[str, Any], right: Mapping[str, Doubles]) -> str:
    if set(found) != set(right):
        return f"parameters {sorted(found)} where {sorted(right)} are right"
    for name, expected in right.items():
        off = np.abs(np.asarray(found[name], dtype=np.float64) - expected).max() / np.abs(expected).max()
        if not off <= OF_LARGEST:
            return f"{name} is off by {off:.1e} of its largest number"
    return ""


# ---- Under AdamW
#
# No slot has a coefficient: each update is run again, as a whole and for the slots that stay. The least that takes is,
# at each update, one product of values and keys for every weight, and one step of the optimizer.

WHERE = f"label < {GROUPS // 2}"
OF_WAY = 1e-4
"""Of the way that a block's weights went: values and keys are float32, and so are the updates that were made."""
_FLOORS = 3
"""A mask's part of a gradient whose whole all but cancels is divided by what rounding left of it: so many times what
float32 sums do to the oracle's own answer are not told from it.
"""


def adamw(plan: Plan, section: Section) -> None:
    steps = 20 if plan.quick else 100
    torch.manual_seed(0)
    for name, model, batches, count in (
        ("MLP, 784-800-800-10, batches of 256", perceptron(), vectors, steps),
        ("transformer of width 256, 1,024 tokens a batch", Transformer(), texts, steps // 4),
    ):
        memory = plan.folder / f"adamw-{len(section.rows)}"
        train_adamw(model, batches(count), memory)
        replay = _Replay(fresh := Fresh(memory, plan.backend))
        ours: list[float] = []
        plain: dict[torch.dtype, list[float]] = {torch.float32: [], torch.float64: []}
        for _ in range(plan.few):
            (seconds,), found = fresh.measure(lambda engine: engine.weights(where=WHERE, allow_inexact=True), 1)
            ours.append(seconds)
            for dtype, measured in plain.items():
                measured.append(replay.seconds(dtype))
        wrong = replay.wrong(found)
        for dtype, measured in plain.items():
            kind = str(dtype).removeprefix("torch.")
            section.compare(
                f"ablated weights, {name}, {count:,} updates",
                {OURS: Cell.of(ours, wrong=wrong)},
                f"products in {kind} and AdamW",
                Target("at most", 3),
                seconds=Cell.of(measured).seconds,
            )
    section.notes.append(
        f"The filter is {WHERE}: it leaves half of the slots. The products take the values of all slots times their "
        "keys, update by update; an embedding's are added up by index, and biases are sums. torch.optim.AdamW takes "
        "those gradients as it would in training. Neither follows the filter, which dualform does beside the whole, in "
        "float64. Keys and values were already read from disk."
    )


@dataclass(frozen=True, eq=False)
class _Block:
    """A parameter block and the layer that holds it; no other layer does."""

    layer: Layer
    place: Parameter
    initial: Floats

    @property
    def is_bias(self) -> bool:
        return self.place in self.layer.biases

    def gradient(self, values: NDArray[Any], keys: NDArray[Any]) -> NDArray[Any]:
        """As the block is stored, in their type."""
        made: NDArray[Any] = values.T @ (np.ones((len(values), 1), values.dtype) if self.is_bias else keys)
        if self.is_bias:
            return made[:, 0]
        return made.T if self.place.transposed else made


class _Replay:
    """The updates of a recorded training once more, from its keys and values."""

    def __init__(self, fresh: Fresh) -> None:
        self._snapshot = memory = fresh.snapshot()
        initial, layers = memory.initial(), memory.layers.values()
        self._blocks = [
            _Block(layer, place, place.stored_block_of(initial[place.name]))
            for layer in layers
            for place in layer.parameters
        ]
        self._settings = memory.table("parameter_groups").to_pandas().query("group == 0").set_index("step")
        self._step = {layer.name: np.asarray(memory.column(layer.space, "step")) for layer in layers}
        self._label = {layer.name: np.asarray(memory.column(layer.space, "label")) for layer in layers}

    def _arrays(self, layer: Layer, step: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Values float32[b, d_out] and keys float32[b, d_in] of an update, and which of its slots stay."""
        start, stop = np.searchsorted(self._step[layer.name], [step, step + 1]).tolist()
        keys, values = self._snapshot.keys(layer.name), self._snapshot.values(layer.name)
        stays = self._label[layer.name][start:stop] < GROUPS // 2
        return values.block(start, stop), keys.entry_block(start, stop), stays

    def seconds(self, dtype: torch.dtype) -> float:
        """Of the products and the optimizer's steps, without reading."""
        parameters = [nn.Parameter(torch.from_numpy(np.array(block.initial)).to(dtype)) for block in self._blocks]
        optimizer = torch.optim.AdamW(parameters, 1e-3)
        seconds = 0.0
        for step in range(self._snapshot.steps):
            made = [
                tuple(torch.tensor(own, dtype=dtype) for own in self._arrays(block.layer, step)[:2])
                for block in self._blocks
            ]
            lookups = [
                inputs.argmax(1) if block.layer.source == "row numbers" and not block.is_bias else None
                for block, (_, inputs) in zip(self._blocks, made, strict=True)
            ]
            began = perf_counter()
            for parameter, block, rows, (errors, inputs) in zip(parameters, self._blocks, lookups, made, strict=True):
                if block.is_bias:
                    parameter.grad = errors.sum(0)
                elif rows is not None:
                    parameter.grad = torch.zeros_like(parameter).index_add_(0, rows, errors)
                else:
                    parameter.grad = errors.T @ inputs
            optimizer.step()
            seconds += perf_counter() - began
        return seconds

    def wrong(self, found: Mapping[str, Any]) -> str:
        """Hold the ablated weights against AdamW's formulas in float64: the whole decides, what stays follows."""
        for block in self._blocks:
            right, way = self._right(block, np.float64)
            off = np.linalg.norm(block.place.stored_block_of(np.asarray(found[block.place.name])) - right)
            if off <= OF_WAY * way:
                continue
            floor = np.linalg.norm(self._right(block, np.float32)[0] - right)
            if not off <= _FLOORS * floor:
                shares = f"{off / way:.1e} of its way, of which {floor / way:.1e} is rounding"
                return f"{block.place.block_name} is off by {shares}"
        return ""

    def _right(self, block: _Block, dtype: type[np.floating[Any]]) -> tuple[Doubles, float]:
        """The block as the slots that stay leave it, and how far all slots moved it; `dtype`: of the scale."""
        initial = block.initial.astype(np.float64)
        whole, kept = initial.copy(), initial.copy()
        average, own, squares = (np.zeros_like(initial) for _ in range(3))
        for step in range(self._snapshot.steps):
            values, keys, stays = self._arrays(block.layer, step)
            staying = block.gradient(values[stays].astype(np.float64), keys[stays].astype(np.float64))
            every = block.gradient(values.astype(dtype), keys.astype(dtype)).astype(np.float64)
            settings = ("lr", "beta1", "beta2", "eps", "weight_decay")
            lr, beta1, beta2, eps, decay = (float(self._settings[name][step]) for name in settings)
            average += (1 - beta1) * (every - average)
            own += (1 - beta1) * (staying - own)
            squares = beta2 * squares + (1 - beta2) * every * every
            factor = lr / (1 - beta1 ** (step + 1)) / (np.sqrt(squares / (1 - beta2 ** (step + 1))) + eps)
            whole, kept = (1 - lr * decay) * whole - factor * average, (1 - lr * decay) * kept - factor * own
        return kept, float(np.linalg.norm(whole - initial))
