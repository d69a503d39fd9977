"""Products of keys and values: contributions along a direction, dot products of gradients, and the ledger of examples.

Shapes: T slots, n queries or examples, d_in and d_out of a layer, G groups, c candidates.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from benchmarks import oracle
from benchmarks.data import LAYER, LR, Data, Floats, GeneratedKeys, matrix, read, write_memory, write_network
from benchmarks.harness import OURS, Cell, Check, K, Plan, Section, Target, asked, race, unchecked
from benchmarks.peers import ours
from benchmarks.recording import train
from dualform import Engine, ExampleGradients, LayerGradients
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.images.datasets import load_dataset

OUTPUT = 3
PASS, SCAN = "torch, one pass over the keys", "torch, every contribution"
LAYERS, WIDTH = 3, 400
FASTEST = Target("at most", 0.6)


class _Products:
    """Scores float[n, T]: over the layers, the sum of (queries x keys) times (directions x values), times a scale.

    `stored`: by layer, keys float32[T, d_in] and values float32[T, d_out]; `given`: by layer, queries float32[n, d_in]
    and directions float32[n, d_out], or a number: that output alone.
    """

    def __init__(
        self, stored: list[tuple[Floats, Floats]], given: list[tuple[Floats, Floats | int]], scale: float = 1.0
    ) -> None:
        self.stored, self.given, self.scale = stored, given, scale
        self.count = len(given[0][0])

    def torch(self) -> torch.Tensor:
        found: Any = 0
        for (keys, values), (queries, directions) in zip(self.stored, self.given, strict=True):
            of_keys, own = torch.from_numpy(queries) @ torch.from_numpy(keys).T, torch.from_numpy(values)
            if isinstance(directions, int):
                found = found + of_keys * (own[:, directions] * self.scale)
            else:
                found = found + of_keys * (torch.from_numpy(directions) @ own.T * self.scale)
        return found  # type: ignore[no-any-return]

    def numpy(self) -> Floats:
        found: Any = 0
        for (keys, values), (queries, directions) in zip(self.stored, self.given, strict=True):
            own = values[:, directions] if isinstance(directions, int) else directions @ values.T
            found = found + (queries @ keys.T) * (own * np.float32(self.scale))
        return found  # type: ignore[no-any-return]

    def best(self) -> oracle.Best:
        """The right answer: candidates from float64 products, ranked by sums of products that are rounded once each."""
        slots, scores = [], []
        for query in range(self.count):
            near = np.argpartition(-self._wide(query), K + oracle.SPARE)[: K + oracle.SPARE]
            exact = np.zeros(len(near))
            for (keys, values), own, direction in self._of(query):
                of_keys = oracle.exact_scores(keys[near], own)
                exact += of_keys * (self.scale * oracle.exact_scores(values[near], direction))
            order = np.lexsort((near, -exact))[:K]
            slots.append(near[order])
            scores.append(exact[order])
        return oracle.Best(slots, scores, np.zeros(self.count))

    def _wide(self, query: int) -> NDArray[np.float64]:
        """float64[T], block by block."""
        found = np.zeros(len(self.stored[0][0]))
        for start in range(0, len(found), oracle.BLOCK):
            part = slice(start, start + oracle.BLOCK)
            for (keys, values), own, direction in self._of(query):
                of_keys = keys[part].astype(np.float64) @ own.astype(np.float64)
                found[part] += of_keys * (values[part].astype(np.float64) @ direction.astype(np.float64))
        return self.scale * found

    def _of(self, query: int) -> Any:
        """By layer, keys and values, and the query and the direction of one."""
        for stored, (queries, directions) in zip(self.stored, self.given, strict=True):
            outputs = np.eye(stored[1].shape[1], dtype=np.float32)
            yield stored, queries[query], outputs[directions] if isinstance(directions, int) else directions[query]

    def race(self, plan: Plan, ask: Callable[[], Any]) -> dict[str, Cell]:
        """Cells of the ten best slots: ours, torch's and NumPy's."""
        right = self.best()
        contestants: dict[str, Callable[[], Any]] = {
            OURS: ask,
            "torch": lambda: self.torch().topk(K, dim=1).indices,
            "NumPy": lambda: np.argpartition(self.numpy(), -K, axis=1)[:, -K:],
        }
        return race(contestants, plan.repeats, plan.patience, _against(right))


def _against(right: oracle.Best) -> Check:
    """Ours promises to be exact; others give an index a query."""

    def check(name: str, answer: Any) -> tuple[str, str]:
        if ours(name):
            return oracle.wrong_exactly(right, answer.slots, answer.scores), ""
        others = sum(len(np.setdiff1d(own, slots)) > 0 for own, slots in zip(answer, right.slots, strict=True))
        return "", f"other slots than the exact ones for {others} of {len(answer)} queries" if others else ""

    return check


def contributions(plan: Plan, section: Section) -> None:
    folder, made = plan.folder / "values", GeneratedKeys(plan.width)
    write_memory(folder, made, plan.slots, plan.width)
    data, values = read(folder, made.queries(64)), matrix(Snapshot.open(folder).values(LAYER))
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
        f"{plan.slots:,} slots of {data.keys.shape[1]} + {values.shape[1]} numbers, which are generated, the keys as "
        "where no study is at hand. torch and NumPy hold both matrices and multiply them as they stand, on all cores; "
        "of one output they read its column alone. dualform opened the folder, and gives the ids of a float64 brute "
        "force."
    )


def _contribution_sums(plan: Plan, section: Section, engine: Engine, data: Data, values: Floats) -> None:
    """Sums by label, after the same groups were used before, and the ten samples that contributed most."""
    query = data.queries[:1]
    one_hot = np.eye(values.shape[1], dtype=np.float32)[[OUTPUT]]
    products, labels, samples = (
        _Products([(data.keys, values)], [(query, one_hot)], -LR),
        data.groups("label"),
        data.groups("sample"),
    )
    numbers, keys, own = torch.from_numpy(labels.numbers), torch.from_numpy(data.keys), torch.from_numpy(query[0])
    ask = partial(engine.group_sum, LAYER, query, score="contribution", target=OUTPUT, allow_inexact=True)
    scores = products.numpy()[0].astype(np.float64)
    right = np.bincount(labels.numbers, scores, labels.count).astype(np.float64)
    most = np.sort(np.abs(np.bincount(samples.numbers, scores, samples.count)))[::-1][:K]

    def near(expected: NDArray[np.float64], answer: Any) -> tuple[str, str]:
        """Sums of float32 scores are good to some 1e-3 of the largest; wrong ones are further off."""
        off = np.abs(np.asarray(answer, dtype=np.float64)[0] - expected).max() / np.abs(expected).max()
        return ("" if off < 1e-2 else f"off by {off:.1e} of the largest sum"), ""

    question = "contributions by label, groups asked for before, 1 query"
    by_label: dict[str, Callable[[], Any]] = {
        OURS: lambda: ask(by="label").sums,
        SCAN: lambda: torch.zeros(1, labels.count).index_add_(1, numbers, products.torch()),
    }
    cells = race(by_label, plan.repeats, plan.patience, lambda _, answer: near(right, answer))
    section.compare(question, cells, SCAN, Target("at least", 300), times=True)
    question = f"the {K} of {samples.count:,} samples that contributed most, 1 query"
    by_sample: dict[str, Callable[[], Any]] = {
        OURS: lambda: np.abs(ask(by="sample", k=K).sums),
        PASS: lambda: keys @ own,
    }

    def check(name: str, answer: Any) -> tuple[str, str]:
        return near(most, answer) if name == OURS else ("", "")

    cells = race(by_sample, plan.repeats, plan.patience, check)
    section.compare(question, cells, PASS, Target("at most", 2))


def gradients(plan: Plan, section: Section) -> None:
    """Over several layers, compared with their plain products."""
    folder = plan.folder / "network"
    write_network(folder, plan.slots, LAYERS, WIDTH)
    memory = Snapshot.open(folder)
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
        "generated numbers in every layer. torch and NumPy hold all matrices and multiply them as they stand, on all "
        "cores. dualform opened the folder, and gives the ids of a float64 brute force."
    )


# ---- The ledger

HIDDEN, BATCH, FOLLOWED, RESIDUAL = 800, 128, 100, 0.01
TRAINING = "the training itself"


def ledger(plan: Plan, section: Section) -> None:
    """Examples followed through a training: the time, compared with the training, and whether the ledger adds up."""
    if plan.images is None:
        section.notes.append("MNIST was not at hand: no training was followed.")
        return
    dataset, steps = load_dataset("mnist", plan.images), 50 if plan.quick else 200
    (images, labels), tests = (
        (torch.from_numpy(dataset.inputs(part)), torch.from_numpy(np.asarray(part.labels)).long())
        for part in (dataset.train, dataset.test)
    )
    path = plan.folder / "followed"

    def training(momentum: float, memory: Path | None = None) -> None:
        model = _network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
        recorder = None if memory is None else dualform.Recorder(model, optimizer, memory, quiet=True)
        drawn = torch.Generator().manual_seed(1)
        rows = (torch.randint(0, len(images), (BATCH,), generator=drawn) for _ in range(steps))
        train(model, optimizer, ((images[row], labels[row], {"sample": row}) for row in rows), recorder)

    for name, momentum, rows in (
        ("SGD", 0.0, ((10, "first-order", 1.3), (FOLLOWED, "first-order", 2.0), (FOLLOWED, "path", None))),
        ("SGD with momentum 0.9", 0.9, ((FOLLOWED, "first-order", None), (FOLLOWED, "path", None))),
    ):
        training(momentum, path)
        for count, method, most in rows:
            own: Any = dualform.Influence(
                "test", tests[0][:count], tests[1][:count], _loss, by=("sample",), method=cast(Any, method)
            )
            contestants: dict[str, Callable[[], Any]] = {
                OURS: partial(_led, path, own),
                TRAINING: partial(training, momentum),
            }
            cells = race(contestants, plan.few, 2 * plan.patience, _adds_up if method == "path" else unchecked)
            section.compare(
                f"{count} examples followed through {name}, {method}",
                {OURS: cells[OURS]},
                TRAINING,
                None if most is None else Target("at most", most),
                seconds=cells[TRAINING].seconds,
            )
        shutil.rmtree(path)
    section.notes.append(
        f"A network of two hidden layers of {HIDDEN} on MNIST, {steps} steps of {BATCH} images; examples are the first "
        "test images, followed by sample. The ledger is made from the record, beside the same training without a "
        "recorder, on all cores."
    )


def _led(path: Path, influence: dualform.Influence) -> dualform.Ledger:
    return dualform.ledger(path, _network(), influence)


def _adds_up(name: str, answer: Any) -> tuple[str, str]:
    """A path's ledger leaves little of the change of the loss; that of first order leaves all curvature."""
    if name == TRAINING:
        return "", ""
    share = float(np.median(np.abs(answer.residual) / np.abs(answer.final - answer.initial)))
    said = f"the residual is {share:.2%} of the change of the loss, the median of the examples"
    return (said, "") if share > RESIDUAL else ("", said)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def _loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each example."""
    return nn.functional.cross_entropy(outputs, labels, reduction="none")
