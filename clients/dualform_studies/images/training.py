"""The paper's network and training recipe, recorded: batches, updates, and two datasets in succession.

The text of the paper says "vanilla SGD"; its published code, which reaches the accuracies that the text reports, uses
momentum 0.9, learning rate 3e-3 and global gradient clipping at 1.0. Those are the defaults here; a study that departs
from them says so.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform.query.engine import Engine
from dualform_studies.assignment import Progress, counting, or_silent
from dualform_studies.images.datasets import Dataset, Images, examples_of, trained_preview_set


@dataclass(frozen=True)
class Recipe:
    hidden: tuple[int, ...] = (800, 800)
    """Widths of the hidden layers."""
    lr: float = 3e-3
    momentum: float = 0.9
    clip: float = 1.0
    """Greatest norm of the gradient of all parameters together."""
    batch: int = 128
    """Images a step."""
    steps: int = 3000
    """Updates: on each dataset where they are learned one after another, of both where they are mixed."""

    def widths(self, dataset: Dataset) -> tuple[int, ...]:
        """Width of the input, of each hidden layer and of the output."""
        return (dataset.train.pixels.shape[1], *self.hidden, len(dataset.label_names))

    def with_steps(self, steps: int | None) -> Recipe:
        """The same recipe with so many updates, unchanged for None; BadInput for fewer than 1."""
        if steps is None:
            return self
        if steps < 1:
            raise BadInput(f"steps must be at least 1, not {steps}.", hint="For example --steps 1000.", field="steps")
        return replace(self, steps=steps)

    def in_words(self) -> str:
        clipping = f"gradients clipped to norm {self.clip:g}" if math.isfinite(self.clip) else "no clipping"
        return (
            f"SGD with momentum {self.momentum:g}, learning rate {self.lr:g}, {clipping}, {self.batch} images a batch, "
            f"hidden layers of {' and '.join(map(str, self.hidden))}"
        )

    def optimizer(self, network: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(network.parameters(), lr=self.lr, momentum=self.momentum)


_EVALUATED_AT_ONCE = 1000


def build_network(widths: Sequence[int], seed: int) -> nn.Sequential:
    """A network of len(widths) - 1 linear layers in PyTorch's default initialisation, drawn from the seed alone.

    `widths` holds the width of the input, of each hidden layer and of the output, e.g. (784, 800, 800, 10).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number, (d_in, d_out) in enumerate(pairwise(widths)):
            if number:
                layers[f"relu-{number - 1}"] = nn.ReLU()
            layers[f"layer-{number}"] = nn.Linear(d_in, d_out)
    return nn.Sequential(layers)


def layer_names(widths: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"layer-{number}" for number in range(len(widths) - 1))


def with_weights(widths: Sequence[int], weights: Mapping[str, Tensor]) -> nn.Sequential:
    """A fresh network holding these weights, such as those that a masked memory gives."""
    network = build_network(widths, seed=0)
    network.load_state_dict(dict(weights))
    return network


@torch.no_grad()
def predictions(network: nn.Module, dataset: Dataset, images: Images) -> NDArray[np.int64]:
    """int64[n]: the class of the greatest output for each image, in evaluation mode and a thousand images at a time."""
    was_training = network.training
    network.eval()
    classes = [network(batch).argmax(dim=1).numpy() for batch in _batches(dataset, images)]
    network.train(was_training)
    return np.concatenate(classes)


def accuracy(network: nn.Module, dataset: Dataset) -> float:
    """Fraction of the test images that the network classifies as labelled."""
    return float((predictions(network, dataset, dataset.test) == dataset.test.labels).mean())


def _batches(dataset: Dataset, images: Images) -> Iterator[Tensor]:
    for start in range(0, len(images), _EVALUATED_AT_ONCE):
        yield torch.from_numpy(dataset.inputs(images, slice(start, start + _EVALUATED_AT_ONCE)))


@dataclass(frozen=True, eq=False)
class Batch:
    inputs: NDArray[np.float32]
    """float32[b, d]."""
    labels: NDArray[np.int64]
    """int64[b]."""
    rows: NDArray[np.int64]
    """int64[b]: of each image, its row in the training file of its dataset."""
    dataset: str | Sequence[str]
    """Of all images, or of each."""


def batch_rows(rows: NDArray[np.int64], recipe: Recipe, seed: int, part: int) -> Iterator[NDArray[np.int64]]:
    """int64[b] for each step, out of `rows`: epoch after epoch in a new order, without replacement.

    Every batch is full: one that begins at the end of an epoch is filled up from the next, as the paper's code does.
    The order depends on the seed and on the number of the part alone, so a recorded and an unrecorded training see the
    same batches.
    """
    order = np.random.default_rng((seed, part))
    waiting = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(waiting) < recipe.batch:
            waiting = np.concatenate([waiting, order.permutation(rows)])
        yield waiting[: recipe.batch]
        waiting = waiting[recipe.batch :]


def drawn_rows(rows: NDArray[np.int64], recipe: Recipe, seed: int) -> Iterator[NDArray[np.int64]]:
    """int64[b] for each step, each drawn by chance from all of `rows`: no epochs."""
    draw = np.random.default_rng(seed)
    for _ in range(recipe.steps):
        yield draw.choice(rows, size=recipe.batch)


def batches(dataset: Dataset, order: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
    """One dataset's training images, in batches of the rows that `order` gives."""
    for rows in order:
        yield Batch(dataset.inputs(dataset.train, rows), dataset.train.labels[rows], rows, dataset.name)


def mixed_batches(datasets: Sequence[Dataset], recipe: Recipe, seed: int) -> Iterator[Batch]:
    """The images of several datasets in one stream; each is normalised as its own dataset is."""
    trained = [dataset.split.trained for dataset in datasets]
    source = np.repeat(np.arange(len(datasets)), [len(rows) for rows in trained])
    row_of = np.concatenate(trained)
    names = np.array([dataset.name for dataset in datasets], dtype=object)
    for places in batch_rows(np.arange(len(row_of)), recipe, seed, part=0):
        sources, rows = source[places], row_of[places]
        inputs = np.empty((len(places), datasets[0].side ** 2), dtype=np.float32)
        labels = np.empty(len(places), dtype=np.int64)
        for number, dataset in enumerate(datasets):
            own = sources == number
            inputs[own] = dataset.inputs(dataset.train, rows[own])
            labels[own] = dataset.train.labels[rows[own]]
        yield Batch(inputs, labels, rows, names[sources].tolist())


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    clip: float,
    *,
    recorder: Recorder | None = None,
    tell: Callable[[int], None] | None = None,
) -> None:
    """Take one update a batch; `clip` bounds the norm of each gradient, `tell` hears how many are done."""
    parameters = list(network.parameters())
    network.train()
    for done, batch in enumerate(batches, start=1):
        images, labels = torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels)
        with _recording(recorder, batch.dataset, labels, torch.from_numpy(batch.rows)):
            loss = cross_entropy(network(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
        if tell is not None:
            tell(done)


def train_part(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset,
    recipe: Recipe,
    *,
    seed: int,
    part: int,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
) -> None:
    """Take `recipe.steps` updates on one dataset; the optimizer goes on from the part before, momentum included."""
    stream = batches(dataset, batch_rows(dataset.split.trained, recipe, seed, part))

    tell = counting(progress, f"training on {dataset.name}", recipe.steps)
    train(network, optimizer, stream, recipe.clip, recorder=recorder, tell=tell)


def _recording(
    recorder: Recorder | None, dataset: str | Sequence[str], labels: torch.Tensor, rows: torch.Tensor
) -> AbstractContextManager[object]:
    if recorder is None:
        return nullcontext()
    step: AbstractContextManager[object] = recorder.step(dataset=dataset, label=labels, sample=rows)
    return step


def query_set_name(dataset: Dataset, at_step: int | None = None) -> str:
    """Of all test images of a dataset, as the network of the end, or of an earlier step, sees them."""
    return f"test-{dataset.name}" if at_step is None else f"test-{dataset.name}-at-{at_step}"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The network after a number of updates, as a recorded memory holds it."""

    dataset: Dataset
    step: int
    last: bool = False

    @property
    def query_set(self) -> str:
        return query_set_name(self.dataset, None if self.last else self.step)

    @property
    def where(self) -> str:
        """The mask that leaves what was trained until then."""
        return f"step < {self.step}"

    def classes_given(self, memory: Answers) -> NDArray[np.int64]:
        """int64[n]: the class that the network gave each test image."""
        outputs = memory.query_set(self.query_set).outputs
        assert outputs is not None, "record stores what the network answers"
        return np.asarray(outputs.argmax(axis=1), dtype=np.int64)


def record(
    datasets: Sequence[Dataset],
    stream: Iterator[Batch],
    recipe: Recipe,
    seed: int,
    folder: Path,
    *,
    moments: Sequence[int] = (),
    values: bool = True,
    progress: Progress | None = None,
) -> float:
    """Train a fresh network for `recipe.steps` updates into a memory; seconds of the updates, until all is on disk.

    Query sets of every dataset's test images are taken at the end and, under `query_set_name`, at `moments`, ascending
    numbers of updates below the last. Raises AlreadyExists where the folder holds something.
    """
    network = build_network(recipe.widths(datasets[0]), seed)
    optimizer = recipe.optimizer(network)
    names = {dataset.name: list(dataset.label_names) for dataset in datasets}
    label = f"training on {' and '.join(names)}"
    seconds, done = 0.0, 0

    def tell(taken: int) -> None:
        or_silent(progress)(label, done + taken, recipe.steps)

    with Recorder(network, optimizer, folder, values=values, label_names=names, quiet=True) as recorder:
        for moment in (*moments, recipe.steps):
            start = perf_counter()
            train(network, optimizer, islice(stream, moment - done), recipe.clip, recorder=recorder, tell=tell)
            recorder.flush()
            seconds += perf_counter() - start
            done = moment
            for dataset in datasets:
                images = torch.from_numpy(dataset.inputs(dataset.test))
                name = query_set_name(dataset, None if moment == recipe.steps else moment)
                recorder.query_set(name, images, label=dataset.test.labels, previews=examples_of(dataset))
        for dataset in datasets:
            recorder.previews(dataset.name, trained_preview_set(dataset))
    return seconds


Pair: TypeAlias = tuple[Dataset, Dataset]
Weights: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    after_first: Weights
    """A copy of the weights that the network had when the first dataset was done."""
    optimizer_after_first: dict[str, Any]
    """A copy of what the optimizer held then, momentum included, as its state_dict gives it."""
    final: Weights
    seconds: float
    """Time of the updates; of a recorded training, until the record is on disk."""


def train_in_succession(
    pair: Pair, recipe: Recipe, seed: int, *, record_to: Path, progress: Progress | None = None
) -> TrainedNetwork:
    """Train a fresh network on both datasets, recorded into the folder `record_to`.

    The memory stores the query sets `test-NAME`, all test images of each dataset with their labels, at its
    end, and what both kinds of images look like.
    Raises AlreadyExists where the folder holds something.
    """
    network = build_network(recipe.widths(pair[0]), seed)
    optimizer = recipe.optimizer(network)
    names = {dataset.name: list(dataset.label_names) for dataset in pair}
    seconds, weights, states = 0.0, [], []
    with Recorder(network, optimizer, record_to, values=True, label_names=names, quiet=True) as recorder:
        for part, dataset in enumerate(pair):
            start = perf_counter()
            train_part(network, optimizer, dataset, recipe, seed=seed, part=part, recorder=recorder, progress=progress)
            recorder.flush()
            seconds += perf_counter() - start
            weights.append(copied(network))
            states.append(deepcopy(optimizer.state_dict()))
        for dataset in pair:
            recorder.previews(dataset.name, trained_preview_set(dataset))
            images, preview_set = torch.from_numpy(dataset.inputs(dataset.test)), examples_of(dataset)
            recorder.query_set(query_set_name(dataset), images, label=dataset.test.labels, previews=preview_set)
    return TrainedNetwork(weights[0], states[0], weights[1], seconds)


def copied(network: nn.Module) -> Weights:
    """The weights as they are now: training goes on with others."""
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}


def without(dataset: Dataset) -> str:
    """The mask that leaves a dataset out."""
    return f"dataset <> '{dataset.name}'"


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the networks of each moment make of the test images."""

    pair: Pair
    classes: Mapping[str, Mapping[str, NDArray[np.int64]]]
    """By moment and dataset: int64[n], the class that the network gives each test image."""

    def accuracy(self) -> dict[str, dict[str, float]]:
        """By dataset and moment: the fraction of test images classified as labelled."""
        return {
            dataset.name: {moment: float(right.mean()) for moment, right in self.recognised(dataset).items()}
            for dataset in self.pair
        }

    def recognised(self, dataset: Dataset) -> dict[str, NDArray[np.bool_]]:
        """By moment: bool[n], the test images of a dataset that are classified as labelled."""
        return {moment: classes[dataset.name] == dataset.test.labels for moment, classes in self.classes.items()}

    def interfered(self) -> NDArray[np.int64]:
        """Test rows of the first dataset: right after it was learned, wrong at the end, right again with the mask."""
        right = self.recognised(self.pair[0])
        return np.flatnonzero(right["after_first"] & ~right["final"] & right["masked"])


def moments(pair: Pair) -> dict[str, str]:
    """The networks that a succession is judged by, in words for a figure."""
    first, second = (dataset.name for dataset in pair)
    return {
        "after_first": f"after {first}",
        "final": "at the end",
        "masked": f"at the end,\n{second} removed",
        "as_of_first": f"rebuilt as of\nthe end of {first}",
    }


def weights_by_moment(memory: Engine, trained: TrainedNetwork, pair: Pair, recipe: Recipe) -> dict[str, Weights]:
    """The weights of each moment: two as training had them, two as the memory rebuilds them.

    `after_first` and `final` are training's own; `masked` is the final sum without the second dataset, `as_of_first`
    the whole sum as it stood when the first one ended. These two differ by the momentum that was then still to come.
    """
    return {
        "after_first": trained.after_first,
        "final": trained.final,
        "masked": memory.weights(where=without(pair[1])),
        "as_of_first": memory.weights(at_step=recipe.steps),
    }


def judge_moments(weights: Mapping[str, Weights], pair: Pair, recipe: Recipe) -> Verdict:
    """Classify all test images of both datasets with the network of each moment."""
    networks = {moment: with_weights(recipe.widths(pair[0]), held) for moment, held in weights.items()}
    return Verdict(
        pair,
        {
            moment: {dataset.name: predictions(network, dataset, dataset.test) for dataset in pair}
            for moment, network in networks.items()
        },
    )
