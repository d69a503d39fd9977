"""Ablated weights of whole networks, and sums over a whole study, compared with plain matrix products.

Shapes: T slots, b slots of a block or a step, d_in and d_out of a layer, n queries, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import oracle
from benchmarks.data import Floats, Fresh, Groups, read_study
from benchmarks.harness import OURS, Cell, Plan, Row, Section, Target, race
from benchmarks.recording import GROUPS, Transformer, perceptron, texts, train_adamw, vectors
from dualform import QuerySetExamples
from dualform.query.engine import Engine
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot

BLOCK = 8192
Doubles = NDArray[np.float64]

# ---- Under SGD, of a whole study

FIRST, AGAIN = Target("at most", 2), Target("at most", 0.010, "s")
QUESTION = "ablated weights of all layers"
OF_LARGEST = 1e-6
"""Of the largest weight: they are returned in float32."""


def weights(plan: Plan, section: Section) -> None:
    """With one dataset masked out."""
    if section.lacks_study(plan, {f"{QUESTION}, first time": FIRST, f"{QUESTION}, again": AGAIN}):
        return
    assert plan.study is not None
    memory = read_study(plan.study)
    datasets = memory.column("sample", "dataset")
    stays = np.asarray(datasets != datasets[-1], dtype=bool)
    where = f"dataset <> '{datasets[-1]}'"
    fresh = Fresh(plan.study, plan.backend, int(np.flatnonzero(stays)[-1]) + 1)
    first: list[float] = []
    again: list[float] = []
    for _ in range(plan.few):
        with fresh.engine() as engine:
            for measured in (first, again):
                began = perf_counter()
                found = engine.weights(where=where)
                measured.append(perf_counter() - began)
    products, right = _products(memory, stays)
    wrong = wrong_weights(found, right)
    for kind, seconds in products.items():
        cells, beside = {OURS: Cell.of(first, wrong=wrong)}, f"their plain products in {kind}"
        section.compare(f"{QUESTION}, first time", cells, beside, FIRST, seconds=seconds)
    section.alone(f"{QUESTION}, again", Cell.of(again, wrong=wrong), AGAIN)
    section.notes.append(
        f"The filter is {where}: it leaves {int(stays.sum()):,} of {len(stays):,} slots. The products take the values "
        "of the slots that stay times their keys, block by block; reading, conversion and the sum over blocks' edges "
        "are not counted. dualform adds in float64. The keys and values were already read from disk."
    )


def _products(memory: Snapshot, stays: NDArray[np.bool_]) -> tuple[dict[str, float], dict[str, Doubles]]:
    """Seconds of the products of all layers in float32 and in float64, and the weights, from the latter."""
    step, seconds = np.asarray(memory.column("sample", "step")), {"float32": 0.0, "float64": 0.0}
    right = {name: initial.astype(np.float64) for name, initial in memory.initial().items()}
    for layer in memory.layers.values():
        coefficients = {place.name: sgd_coefficients(memory, place.name) for place in layer.parameters}
        (weight,) = (place.name for place in layer.weights)
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        for start in range(0, len(stays), BLOCK):
            stop = min(start + BLOCK, len(stays))
            own = stays[start:stop]
            slots, inputs, errors = (
                np.flatnonzero(own) + start,
                keys.entry_block(start, stop),
                values.block(start, stop),
            )
            if not len(slots):
                continue
            inputs, errors = inputs[own], errors[own]
            wide = errors.astype(np.float64)
            scaled = np.ascontiguousarray((wide * coefficients[weight][step[slots]][:, None]).T)
            for kind, left, of_keys in (
                ("float32", np.ascontiguousarray(errors.T), inputs),
                ("float64", scaled, inputs.astype(np.float64)),
            ):
                began = perf_counter()
                product = left @ of_keys
                seconds[kind] += perf_counter() - began
            right[weight] += product
            for place in layer.biases:
                right[place.name] += coefficients[place.name][step[slots]] @ wide
    return seconds, right


def sgd_coefficients(memory: Snapshot, parameter: str) -> Doubles:
    """float64[steps]: the coefficient of each step's gradient in the final weights, measured factor included.

    The recurrence of SGD with momentum, written out: v = m v + c g, w = w - lr v. Raises ValueError where the training
    used more than that.
    """
    groups = memory.table("parameter_groups").to_pandas().query("group == 0").sort_values("step")
    if groups[["dampening", "weight_decay"]].to_numpy().any() or groups[["nesterov", "maximize"]].to_numpy().any():
        raise ValueError("the benchmark's recurrence knows only SGD with momentum")
    factors = memory.table("factors").to_pandas()
    own = factors[factors["parameter"] == parameter].sort_values("step")
    if not np.array_equal(own["step"], groups["step"]) or not np.array_equal(own["step"], np.arange(len(own))):
        raise ValueError("the benchmark's recurrence needs an update at every step")
    rate, momentum = groups["lr"].to_numpy(), groups["momentum"].to_numpy()
    ahead, found = 0.0, np.empty(len(rate))
    for step in reversed(range(len(rate))):
        # What velocity at this step adds to the weights from here to the end: lr_s + m_{s+1} (lr_{s+1} + ...).
        ahead = rate[step] + (momentum[step + 1] * ahead if step + 1 < len(rate) else 0.0)
        found[step] = -ahead
    found *= own["factor"].to_numpy(dtype=np.float64)
    return found


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


# ---- Sums over a whole study

BY = ("dataset", "label")
CHECKED = 2
"""Queries whose sums are compared with the float64 oracle."""
SCORES: tuple[Literal["dot", "abs"], ...] = ("dot", "abs")
OF_ABSOLUTE = {"dot": 1e-12, "abs": 1e-6}
FIRST_STEPS, FEWER = 300, 1000
"""Steps and queries of sums for which a program could hold all scores."""


def study_sums(plan: Plan, section: Section) -> None:
    """Signed and absolute sums of a query set's queries at every layer, compared with one matrix product."""
    question, target = f"dot and absolute sums of {plan.study_queries:,} test queries, all layers", Target("at most", 2)
    if section.lacks_study(plan, {question: target}):
        return
    assert plan.study is not None
    memory = read_study(plan.study)
    query_set = next(iter(memory.query_sets))
    examples = QuerySetExamples(query_set, tuple(range(plan.study_queries)))
    with Fresh(plan.study, plan.backend).engine() as engine:
        before, seconds, wrong = _product(memory, query_set, plan.study_queries), 0.0, ""
        for layer in memory.layers.values():
            queries = memory.query_set(query_set).queries(layer.name)[:CHECKED]
            right = _sums(memory, layer, queries)
            for score in SCORES:
                began = perf_counter()
                found = engine.group_sum(layer.name, examples, BY, score=score).sums[:CHECKED]
                seconds += perf_counter() - began
                if off := oracle.wrong_sums(right, score == "abs", found, OF_ABSOLUTE[score]):
                    wrong = wrong or f"{layer.name}, {score}: {off}"
        product = (before + _product(memory, query_set, plan.study_queries)) / 2
        beside = "one float32 product with layer 0's distinct keys"
        cells = {OURS: Cell(seconds, seconds, 1, wrong=wrong)}
        section.compare(question, cells, beside, target, seconds=product)
        _first_steps(plan, section, engine, memory, query_set)
    section.notes.append(
        "Layer 0 holds each image once, the other layers a key for every slot. After a relu neither keys nor queries "
        "are negative, so the absolute sums of those layers are their dot sums; where signs differ, absolute sums need "
        "every score."
    )


def _product(memory: Snapshot, query_set: str, count: int) -> float:
    """Seconds of the queries times layer 0's distinct keys in float32, block by block, the scores dropped."""
    layer = next(iter(memory.layers))
    queries = torch.from_numpy(np.array(memory.query_set(query_set).queries(layer)[:count]))
    scores, took = torch.empty((len(queries), BLOCK)), 0.0
    for _, block in memory.keys(layer).blocks(BLOCK):
        keys = torch.from_numpy(np.array(block))
        began = perf_counter()
        torch.matmul(queries, keys.T, out=scores if len(keys) == BLOCK else None)
        took += perf_counter() - began
    return took


def _sums(memory: Snapshot, layer: Layer, queries: Floats) -> oracle.Sums:
    """The oracle's sums, slot block by slot block."""
    groups = Groups.of({name: memory.column(layer.space, name) for name in BY}, *BY)
    keys, shape = memory.keys(layer.name), (len(queries), groups.count)
    found = oracle.Sums(np.zeros(shape), np.zeros(shape))
    for start in range(0, keys.entries, BLOCK):
        part = Groups(BY, groups.numbers[start : start + BLOCK], groups.count)
        (block,) = oracle.sums(keys.entry_block(start, min(start + BLOCK, keys.entries)), queries, [part])
        found.signed[:] += block.signed
        found.absolute[:] += block.absolute
    return found


def _first_steps(plan: Plan, section: Section, engine: Engine, memory: Snapshot, query_set: str) -> None:
    """Absolute sums of the first steps' slots at layer 0 by label, and NumPy's with their keys as one matrix."""
    layer = next(iter(memory.layers.values()))
    queries = memory.query_set(query_set).queries(layer.name)[:FEWER]
    slots = np.flatnonzero(np.asarray(memory.column(layer.space, "step")) < FIRST_STEPS)
    numbers, keys = np.asarray(memory.column(layer.space, "label"))[slots], memory.keys(layer.name).of_entries(slots)
    members = np.eye(numbers.max() + 1, dtype=np.float32)[numbers]

    def plain() -> Doubles:
        sums = np.zeros((len(queries), members.shape[1]))
        for start in range(0, len(keys), BLOCK):
            scores = queries @ keys[start : start + BLOCK].T
            sums += np.abs(scores, out=scores) @ members[start : start + BLOCK]
        return sums

    def ours() -> Doubles:
        return engine.group_sum(layer.name, queries, "label", f"step < {FIRST_STEPS}", score="abs").sums

    scores = np.abs(queries[:CHECKED].astype(np.float64) @ keys.T.astype(np.float64))
    right = np.stack([np.bincount(numbers, row) for row in scores]).astype(np.float64)

    def check(name: str, answer: Any) -> tuple[str, str]:
        wrong = oracle.wrong_sums(oracle.Sums(right, right), True, answer[:CHECKED], OF_ABSOLUTE["abs"])
        return (wrong, "") if name == OURS else ("", "")

    ours()
    cells = race({OURS: ours, "NumPy, float32": plain}, plan.repeats, plan.patience, check)
    question = f"absolute sums of {FEWER:,} test queries at layer 0 by label, {len(slots):,} slots"
    target = Target("at most", 0.7, "s") if len(queries) == FEWER else None
    section.rows.append(Row(question, cells, target=target))
