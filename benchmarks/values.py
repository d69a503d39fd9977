"""Questions to keys and values: contributions along a direction, dot products of gradients, the ledger of examples, and
ablated weights of whole networks.

Shapes: T slots, n queries or examples, b slots of an update, d_in and d_out of a layer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from benchmarks import oracle
from benchmarks.data import (
    BLOCK,
    LAYER,
    LR,
    Data,
    Floats,
    Fresh,
    GeneratedKeys,
    matrix,
    network,
    read,
    read_memory,
    write_memory,
    write_network,
)
from benchmarks.harness import OURS, Cell, K, Plan, Section, Target, asked, race, seconds_of, turns, unchecked
from benchmarks.recording import GROUPS, Transformer, perceptron, texts, train, train_adamw, vectors
from dualform import Engine, ExampleGradients, LayerGradients
from dualform.store.layer import Layer, Parameter
from dualform_studies.images.datasets import load_dataset

Doubles: TypeAlias = NDArray[np.float64]

OUTPUT = 3
PASS, SCAN = "torch, one pass over the keys", "torch, every contribution"
LAYERS, WIDTH = 3, 400
FASTEST = Target("at most", 0.6)
HELD = (
    "torch and NumPy hold all matrices and multiply them as they stand, on all cores. dualform opened the folder, and "
    "gives the ids of a float64 brute force."
)


class _Products(NamedTuple):
    """Scores [n, T]: over the layers, the sum of (queries x keys) times (directions x values), times a scale."""

    stored: list[tuple[Floats, Floats]]
    """By layer, keys float32[T, d_in] and values float32[T, d_out]."""
    given: list[tuple[Floats, Floats | int]]
    """By layer, queries float32[n, d_in] and directions float32[n, d_out], or a number: that output alone."""
    scale: float = 1.0

    def scores(self, of: Callable[[Floats], Any]) -> Any:
        """In the type that `of` makes of a matrix."""
        total: Any = 0
        for (keys, values), (queries, directions) in zip(self.stored, self.given, strict=True):
            own = of(values)
            along = own[:, directions] if isinstance(directions, int) else of(directions) @ own.T
            total = total + (of(queries) @ of(keys).T) * (along * self.scale)
        return total

    def best(self) -> oracle.Best:
        """The right answer: candidates from float64 products, ranked by sums of products that are rounded once each."""
        count, slots = len(self.stored[0][0]), list[NDArray[np.int64]]()
        parts = [self.of_slots(slice(start, start + oracle.BLOCK)) for start in range(0, count, oracle.BLOCK)]
        wide = np.concatenate([part.scores(partial(np.asarray, dtype=np.float64)) for part in parts], axis=1)
        scores = list[Doubles]()
        for query, near in enumerate(np.argpartition(-wide, K + oracle.SPARE)[:, : K + oracle.SPARE]):
            exact = np.zeros(len(near))
            for (keys, values), (queries, directions) in zip(self.stored, self.given, strict=True):
                outputs = np.eye(values.shape[1], dtype=np.float32)
                along = outputs[directions] if isinstance(directions, int) else directions[query]
                of_keys = oracle.exact_scores(keys[near], queries[query])
                exact += of_keys * (self.scale * oracle.exact_scores(values[near], along))
            order = np.lexsort((near, -exact))[:K]
            slots.append(near[order])
            scores.append(exact[order])
        return oracle.Best(slots, scores, np.zeros(len(slots)))

    def of_slots(self, part: slice) -> _Products:
        return self._replace(stored=[(keys[part], values[part]) for keys, values in self.stored])

    def race(self, plan: Plan, ask: Callable[[], Any]) -> dict[str, Cell]:
        """Cells of the ten best slots: ours, which promises to be exact, torch's and NumPy's."""
        right = self.best()

        def check(name: str, answer: Any) -> tuple[str, str]:
            if name == OURS:
                return oracle.wrong_exactly(right, answer.slots, answer.scores), ""
            others = sum(len(np.setdiff1d(own, slots)) > 0 for own, slots in zip(answer, right.slots, strict=True))
            return "", f"other slots than the exact ones for {others} of {len(answer)} queries" if others else ""

        contestants: dict[str, Callable[[], Any]] = {
            OURS: ask,
            "torch": lambda: self.scores(torch.from_numpy).topk(K, dim=1).indices,
            "NumPy": lambda: np.argpartition(self.scores(np.asarray), -K, axis=1)[:, -K:],
        }
        return race(contestants, plan.repeats, plan.patience, check)


def contributions(plan: Plan, section: Section) -> None:
    folder, made = plan.folder / "values", GeneratedKeys(plan.width)
    write_memory(folder, {LAYER: made}, plan.slots, plan.width)
    data, values = read(folder, made.queries(64)), matrix(read_memory(folder).values(LAYER))
    directions = np.random.default_rng(9).normal(size=(64, values.shape[1])).astype(np.float32)
    with dualform.open(folder, backend=plan.backend) as engine:
        for count in (1, 64):
            queries = data.queries[:count]
            for target, words in ((OUTPUT, "to an output"), (directions[:count], "along vectors")):
                ask = partial(engine.topk, LAYER, queries, K, score="contribution", target=target, allow_inexact=True)
                cells = _Products([(data.keys, values)], [(queries, target)], -LR).race(plan, ask)
                section.compare_fastest(f"top-{K} by contribution, {words}, {asked(count)}", cells, FASTEST)
        _contribution_sums(plan, section, engine, data, values)
    section.notes.append(
        f"{plan.slots:,} slots of {data.keys.shape[1]} + {values.shape[1]} numbers, which are generated. {HELD} Of one "
        "output torch and NumPy read its column alone."
    )


def _contribution_sums(plan: Plan, section: Section, engine: Engine, data: Data, values: Floats) -> None:
    """Sums by label, after the same groups were used before, and the ten samples that contributed most."""
    query, one_hot = data.queries[:1], np.eye(values.shape[1], dtype=np.float32)[[OUTPUT]]
    products = _Products([(data.keys, values)], [(query, one_hot)], -LR)
    labels, samples = data.groups("label"), data.groups("sample")
    numbers, keys, own = torch.from_numpy(labels.numbers), torch.from_numpy(data.keys), torch.from_numpy(query[0])
    scores = products.scores(np.asarray)[0].astype(np.float64)
    by_label, by_sample = (np.bincount(groups.numbers, scores, groups.count) for groups in (labels, samples))
    ask = partial(engine.group_sum, LAYER, query, score="contribution", target=OUTPUT, allow_inexact=True)

    def compare(question: str, contestants: dict[str, Callable[[], Any]], right: NDArray[Any], **said: Any) -> None:
        def near(name: str, answer: Any) -> tuple[str, str]:
            """Sums of float32 scores are good to some 1e-3 of the largest; wrong ones are further off."""
            if name == PASS:
                return "", ""
            off = np.abs(np.asarray(answer, dtype=np.float64)[0] - right).max() / np.abs(right).max()
            return ("" if off < 1e-2 else f"off by {off:.1e} of the largest sum"), ""

        section.compare(question, race(contestants, plan.repeats, plan.patience, near), list(contestants)[1], **said)

    compare(
        "contributions by label, groups asked for before, 1 query",
        {
            OURS: lambda: ask(by="label").sums,
            SCAN: lambda: torch.zeros(1, labels.count).index_add_(1, numbers, products.scores(torch.from_numpy)),
        },
        by_label,
        target=Target("at least", 300),
        times=True,
    )
    compare(
        f"the {K} of {samples.count:,} samples that contributed most, 1 query",
        {OURS: lambda: np.abs(ask(by="sample", k=K).sums), PASS: lambda: keys @ own},
        np.sort(np.abs(by_sample))[::-1][:K],
        target=Target("at most", 2),
    )


def gradients(plan: Plan, section: Section) -> None:
    """Over several layers, compared with their plain products."""
    folder = plan.folder / "network"
    write_network(folder, plan.slots, LAYERS, WIDTH)
    memory = read_memory(folder)
    stored = [(matrix(memory.keys(name)), matrix(memory.values(name))) for name in memory.layers]
    with dualform.open(folder, backend=plan.backend) as engine:
        for count in (1, 64):
            rng = np.random.default_rng(count)
            given: dict[str, tuple[Floats, Floats]] = {
                name: (
                    np.maximum(rng.standard_normal((count, WIDTH), dtype=np.float32), 0),
                    rng.standard_normal((count, WIDTH), dtype=np.float32),
                )
                for name in memory.layers
            }
            layers = {name: LayerGradients(*own, np.arange(count)) for name, own in given.items()}
            ask = partial(engine.topk, "*", ExampleGradients(count, layers), K, score="gradient")
            cells = _Products(stored, list(given.values())).race(plan, ask)
            examples = asked(count).replace("queries", "examples").replace("query", "example")
            section.compare_fastest(f"top-{K} by gradient over {LAYERS} layers, {examples}", cells, FASTEST)
    section.notes.append(
        f"{plan.slots:,} slots in {LAYERS} layers of {WIDTH} + {WIDTH} generated numbers; of each example a row of "
        f"generated numbers in every layer. {HELD}"
    )


# ---- The ledger

ROWS, FOLLOWED, RESIDUAL = 128, 100, 0.01
TRAINING = "the training itself"


def ledger(plan: Plan, section: Section) -> None:
    """Examples followed through a training: the time, compared with the training, and whether the ledger adds up."""
    if plan.images is None:
        section.notes.append("MNIST was not at hand: no training was followed.")
        return
    dataset, steps, path = load_dataset("mnist", plan.images), 50 if plan.quick else 200, plan.folder / "followed"
    (images, labels), tests = (
        (torch.from_numpy(dataset.inputs(part)), torch.from_numpy(np.asarray(part.labels)).long())
        for part in (dataset.train, dataset.test)
    )

    def fresh_network() -> nn.Module:
        torch.manual_seed(0)
        return perceptron()

    def training(momentum: float, memory: Path | None = None) -> None:
        model = fresh_network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
        recorder = None if memory is None else dualform.Recorder(model, optimizer, memory, quiet=True)
        drawn = torch.Generator().manual_seed(1)
        rows = (torch.randint(0, len(images), (ROWS,), generator=drawn) for _ in range(steps))
        train(model, optimizer, ((images[row], labels[row], {"sample": row}) for row in rows), recorder)

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def followed_through(examples: dualform.Influence) -> dualform.Ledger:
        return dualform.ledger(path, fresh_network(), examples)

    for name, momentum, kinds in (
        ("SGD", 0.0, ((10, "first-order", 1.3), (FOLLOWED, "first-order", 2.0), (FOLLOWED, "path", None))),
        ("SGD with momentum 0.9", 0.9, ((FOLLOWED, "first-order", None), (FOLLOWED, "path", None))),
    ):
        training(momentum, path)
        for count, method, most in kinds:
            inputs, targets = (own[:count] for own in tests)
            followed = dualform.Influence("test", inputs, targets, loss, by=("sample",), method=cast(Any, method))
            contestants: dict[str, Callable[[], Any]] = {
                OURS: partial(followed_through, followed),
                TRAINING: partial(training, momentum),
            }
            check = _adds_up if method == "path" else unchecked
            cells = race(contestants, plan.few, 2 * plan.patience, check)
            section.compare(
                f"{count} examples followed through {name}, {method}",
                {OURS: cells[OURS]},
                TRAINING,
                None if most is None else Target("at most", most),
                seconds=cells[TRAINING].seconds,
            )
        shutil.rmtree(path)
    section.notes.append(
        f"A network of two hidden layers of 800 on MNIST, {steps} steps of {ROWS} images; examples are the first "
        "test images, followed by sample. The ledger is made from the record, beside the same training without a "
        "recorder, on all cores."
    )


def _adds_up(name: str, answer: Any) -> tuple[str, str]:
    """A path's ledger leaves little of the change of the loss; that of first order leaves all curvature."""
    if name == TRAINING:
        return "", ""
    share = float(np.median(np.abs(answer.residual) / np.abs(answer.final - answer.initial)))
    said = f"the residual is {share:.2%} of the change of the loss, the median of the examples"
    return (said, "") if share > RESIDUAL else ("", said)


# ---- Ablated weights under SGD

FIRST, AGAIN = Target("at most", 2), Target("at most", 0.010, "s")
QUESTION = "ablated weights of all layers"
OF_LARGEST = 1e-6
"""Of the largest weight: they are returned in float32."""


def weights(plan: Plan, section: Section) -> None:
    """With one dataset masked out."""
    path = network(plan)
    memory, fresh, seconds = read_memory(path), Fresh(path, plan.backend), list[tuple[float, float]]()
    for _ in range(plan.few):
        with fresh.engine() as engine:
            ask = partial(engine.weights, where="dataset = 'first'", allow_inexact=True)
            seconds.append((seconds_of(ask), seconds_of(ask)))
            found = ask()
    stays = np.asarray(memory.column("sample", "dataset") == "first", dtype=bool)
    products = {"float32": 0.0, "float64": 0.0}
    right = {name: initial.astype(np.float64) for name, initial in memory.initial().items()}
    for layer in memory.layers.values():
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        for start in range(0, len(stays), BLOCK):
            own = stays[start : start + BLOCK]
            stop = start + len(own)
            inputs, errors = keys.entry_block(start, stop)[own], values.block(start, stop)[own]
            for kind in products:
                left, of_keys = np.ascontiguousarray(errors.T.astype(kind)), inputs.astype(kind)
                began = perf_counter()
                product = left @ of_keys
                products[kind] += perf_counter() - began
            right[layer.parameters[0].name] -= LR * product
    wrong = wrong_weights(found, right)
    first, again = (Cell.of(own, wrong=wrong) for own in zip(*seconds, strict=True))
    for kind, took in products.items():
        beside = f"their plain products in {kind}"
        section.compare(f"{QUESTION}, first time", {OURS: first}, beside, FIRST, seconds=took)
    section.alone(f"{QUESTION}, again", again, AGAIN)
    section.notes.append(
        f"Of {len(memory.layers)} layers with {len(stays):,} slots, of which a filter leaves {int(stays.sum()):,}. The "
        "products take the values of the slots that stay times their keys, block by block; reading and conversion are "
        "not counted. dualform adds in float64. The keys and values were already read from disk."
    )


def wrong_weights(found: Mapping[str, Any], right: Mapping[str, Doubles]) -> str:
    if set(found) != set(right):
        return f"parameters {sorted(found)} where {sorted(right)} are right"
    for name, expected in right.items():
        off = np.abs(np.asarray(found[name], dtype=np.float64) - expected).max() / np.abs(expected).max()
        if not off <= OF_LARGEST:
            return f"{name} is off by {off:.1e} of its largest number"
    return ""


# ---- Ablated weights under AdamW
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
        fresh = Fresh(memory, plan.backend)
        replay = _Replay(fresh)
        ours = partial(fresh.measure, lambda engine: engine.weights(where=WHERE, allow_inexact=True), 1)
        plain = {kind: partial(replay.seconds, getattr(torch, kind)) for kind in ("float32", "float64")}
        measured: dict[str, list[Any]] = turns({OURS: ours, **plain}, plan.few)
        wrong = replay.wrong(measured[OURS][-1][1])
        for kind in plain:
            section.compare(
                f"ablated weights, {name}, {count:,} updates",
                {OURS: Cell.of([seconds for (seconds,), _ in measured[OURS]], wrong=wrong)},
                f"products in {kind} and AdamW",
                Target("at most", 3),
                seconds=Cell.of(measured[kind]).seconds,
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

    def gradient(self, values: Any, keys: Any) -> Any:
        """As the block is stored, in their type."""
        if self.is_bias:
            return values.sum(0)
        return (values.T @ keys).T if self.place.transposed else values.T @ keys


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
        self._step, self._label = (
            {layer.name: np.asarray(memory.column(layer.space, column)) for layer in layers}
            for column in ("step", "label")
        )

    def _arrays(self, layer: Layer, step: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Values float32[b, d_out] and keys float32[b, d_in] of an update, and which of its slots stay."""
        start, stop = np.searchsorted(self._step[layer.name], [step, step + 1]).tolist()
        keys, values = self._snapshot.keys(layer.name), self._snapshot.values(layer.name)
        stays = self._label[layer.name][start:stop] < GROUPS // 2
        return values.block(start, stop), keys.entry_block(start, stop), stays

    def seconds(self, dtype: torch.dtype) -> float:
        """Of the products and the optimizer's steps, without reading."""
        parameters = [nn.Parameter(torch.from_numpy(np.array(block.initial)).to(dtype)) for block in self._blocks]
        optimizer, seconds = torch.optim.AdamW(parameters, 1e-3), 0.0
        for step in range(self._snapshot.steps):
            made = [
                [torch.tensor(own, dtype=dtype) for own in self._arrays(block.layer, step)[:2]]
                for block in self._blocks
            ]
            lookups = [
                inputs.argmax(1) if block.layer.source == "row numbers" and not block.is_bias else None
                for block, (_, inputs) in zip(self._blocks, made, strict=True)
            ]
            began = perf_counter()
            for parameter, block, rows, own in zip(parameters, self._blocks, lookups, made, strict=True):
                if rows is None:
                    parameter.grad = block.gradient(*own)
                else:
                    parameter.grad = torch.zeros_like(parameter).index_add_(0, rows, own[0])
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
