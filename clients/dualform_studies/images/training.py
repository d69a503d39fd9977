"""The paper's network and training recipe, recorded: batches, updates, and two datasets in succession.

The text of the paper says "vanilla SGD"; its published code, which reaches the accuracies that the text reports, uses
momentum 0.9, learning rate 3e-3 and global gradient clipping at 1.0. Those are the defaults here; a study that departs
from them says so.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform.methods import Answers
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.images.datasets import Dataset, Images
from dualform_studies.recorded_memory import descend, step_of

Pair: TypeAlias = tuple[Dataset, Dataset]
Weights: TypeAlias = Mapping[str, Tensor]


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
        """The same recipe with so many updates, unchanged for None."""
        return self if steps is None else replace(self, steps=steps)

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
    """int64[n]: the class of the greatest output for each image, a thousand images at a time."""
    starts = range(0, len(images), _EVALUATED_AT_ONCE)
    batches = (dataset.inputs(images, slice(start, start + _EVALUATED_AT_ONCE)) for start in starts)
    return np.concatenate([network(torch.from_numpy(batch)).argmax(dim=1).numpy() for batch in batches])


def accuracy(network: nn.Module, dataset: Dataset) -> float:
    """Fraction of the test images that the network classifies as labelled."""
    return float((predictions(network, dataset, dataset.test) == dataset.test.labels).mean())


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


def batch_rows(
    rows: NDArray[np.int64], recipe: Recipe, seed: int, part: int, kept: NDArray[np.bool_] | None = None
) -> Iterator[NDArray[np.int64]]:
    """int64[b] for each step, out of `rows`: epoch after epoch in a new order, without replacement.

    Every batch is full: one that begins at the end of an epoch is filled up from the next, as the paper's code does.
    The order depends on the seed and on the number of the part alone, so a recorded and an unrecorded training see the
    same batches. With `kept`, a bool for each row of the file, the other rows are left out of that order.
    """
    order = np.random.default_rng((seed, part))
    waiting = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(waiting) < recipe.batch:
            epoch = order.permutation(rows)
            waiting = np.concatenate([waiting, epoch if kept is None else epoch[kept[epoch]]])
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


def epochs(dataset: Dataset, recipe: Recipe, seed: int, part: int = 0) -> Iterator[Batch]:
    """One dataset's training images in the order of `batch_rows`."""
    return batches(dataset, batch_rows(dataset.split.trained, recipe, seed, part))


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
    for done, batch in enumerate(batches, start=1):
        images, labels, rows = map(torch.from_numpy, (batch.inputs, batch.labels, batch.rows))
        with step_of(recorder, dataset=batch.dataset, label=labels, sample=rows):
            descend(network, optimizer, cross_entropy(network(images), labels), clip)
        if tell is not None:
            tell(done)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The network after a number of updates, as a recorded memory holds it."""

    dataset: Dataset
    step: int
    last: bool = False

    @property
    def query_set(self) -> str:
        """Of all test images, as the network of then sees them."""
        return self.dataset.query_set if self.last else f"{self.dataset.query_set}-at-{self.step}"

    @property
    def where(self) -> str:
        """The mask that leaves what was trained until then."""
        return f"step < {self.step}"

    def classes_given(self, memory: Answers) -> NDArray[np.int64]:
        """int64[n]: the class that the network gave each test image."""
        outputs = memory.query_set(self.query_set).outputs
        assert outputs is not None, "record stores what the network answers"
        return np.asarray(outputs.argmax(axis=1), dtype=np.int64)

    def accuracy(self, memory: Answers) -> float:
        """Fraction of the test images that the network classified as labelled."""
        return float((self.classes_given(memory) == self.dataset.test.labels).mean())


@dataclass(frozen=True, eq=False)
class Trained:
    """What a recorded training leaves beside its memory."""

    weights: Sequence[Weights]
    """Copies of the weights at each moment, the last at the end."""
    optimizers: Sequence[dict[str, Any]]
    """Copies of what the optimizer held then, momentum included, as its state_dict gives it."""
    seconds: float
    """Time of the updates, until all is on disk."""


def record(
    datasets: Sequence[Dataset],
    stream: Iterator[Batch],
    recipe: Recipe,
    seed: int,
    folder: Path,
    *,
    moments: Sequence[int] = (),
    looked_at: bool = True,
    values: bool = True,
    progress: Progress | None = None,
) -> Trained:
    """Train a fresh network for `recipe.steps` updates into a memory.

    Query sets of every dataset's test images are taken at the end and, if `looked_at`, at `moments`, ascending numbers
    of updates below the last. Raises AlreadyExists if the folder holds something.
    """
    network = build_network(recipe.widths(datasets[0]), seed)
    optimizer = recipe.optimizer(network)
    names = {dataset.name: list(dataset.label_names) for dataset in datasets}
    label, say = f"training on {' and '.join(names)}", or_silent(progress)
    weights: list[Weights] = []
    optimizers, seconds, done = [], 0.0, 0
    with Recorder(network, optimizer, folder, values=values, label_names=names, quiet=True) as recorder:
        for moment in (*moments, recipe.steps):
            start, before = perf_counter(), done

            def tell(taken: int, before: int = before) -> None:
                say(label, before + taken, recipe.steps)

            train(network, optimizer, islice(stream, moment - before), recipe.clip, recorder=recorder, tell=tell)
            recorder.flush()
            seconds, done = seconds + perf_counter() - start, moment
            weights.append({name: weight.detach().clone() for name, weight in network.state_dict().items()})
            optimizers.append(deepcopy(optimizer.state_dict()))
            last = moment == recipe.steps
            for dataset in datasets if last or looked_at else ():
                images, name = torch.from_numpy(dataset.inputs(dataset.test)), Checkpoint(dataset, moment, last)
                previews = dataset.previews(dataset.test)
                recorder.query_set(name.query_set, images, label=dataset.test.labels, previews=previews)
        for dataset in datasets:
            recorder.previews(dataset.name, dataset.previews(dataset.train, np.sort(dataset.split.trained)))
    return Trained(weights, optimizers, seconds)


def train_in_succession(
    pair: Pair, recipe: Recipe, seed: int, *, record_to: Path, progress: Progress | None = None
) -> Trained:
    """Train a fresh network for `recipe.steps` updates on each dataset, recorded into the folder `record_to`.

    The optimizer goes on with the second where it was, momentum included. The one moment before the end is that of the
    first dataset's end. Raises AlreadyExists if the folder holds something.
    """
    stream = chain.from_iterable(epochs(dataset, recipe, seed, part) for part, dataset in enumerate(pair))
    both = recipe.with_steps(2 * recipe.steps)
    return record(pair, stream, both, seed, record_to, moments=(recipe.steps,), looked_at=False, progress=progress)
