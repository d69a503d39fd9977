"""Training images as a stream of batches. Shapes: n images trained on, b of a batch, d pixels of an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.training.recipe import Recipe


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
