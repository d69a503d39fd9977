"""What all test images attend to.

What every test image attends to. Shapes: n test images, G groups, I training images, k best slots of each.

Weights are absolute, as in the paper: inputs of the first layer may be negative, and after relu nothing changes.
The best are images, as in the paper's figures: a slot is one visit of an image, and visits of one have the same key at
the first layer and like keys behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.methods import Answers
from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.training import Checkpoint

_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Datapoints:
    """Of each slot, in the order of slots. An image that is trained on in every epoch has a slot for each visit."""

    datasets: NDArray[np.object_]
    """object[T]: names of datasets."""
    labels: NDArray[np.int64]
    """int64[T]."""
    samples: NDArray[np.int64]
    """int64[T]: of each image, its row in the file of its dataset."""
    steps: NDArray[np.int64]
    """int64[T]: the updates, from 0, that it was part of."""

    @cached_property
    def images(self) -> NDArray[np.int64]:
        """int64[T]: the image of each slot; images are numbered from 0, by dataset and row."""
        _, sources = np.unique(self.datasets, return_inverse=True)
        numbers = sources * (self.samples.max() + 1) + self.samples
        images: NDArray[np.int64] = np.unique(numbers, return_inverse=True)[1]
        return images

    @cached_property
    def visits(self) -> NDArray[np.int64]:
        """int64[I]: how often each image was trained on."""
        return np.bincount(self.images).astype(np.int64)

    @cached_property
    def first_slots(self) -> NDArray[np.int64]:
        """int64[I]: the slot of each image's first visit."""
        slots: NDArray[np.int64] = np.unique(self.images, return_index=True)[1]
        return slots

    @cached_property
    def image_datasets(self) -> NDArray[np.object_]:
        """object[I]: names of datasets."""
        return self.datasets[self.first_slots]

    @cached_property
    def image_labels(self) -> NDArray[np.int64]:
        """int64[I]."""
        return self.labels[self.first_slots]

    def mean_by_image(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[I]: the mean over each image's slots of float64[T]."""
        means: NDArray[np.float64] = np.bincount(self.images, values) / self.visits
        return means


def ask_datapoints(memory: Answers) -> Datapoints:
    """All slots of a memory that has one slot space."""
    ((space, count),) = memory.info().slots.items()
    columns = memory.slots(np.arange(count), space)
    labels, samples, steps = (np.asarray(columns[name], dtype=np.int64) for name in ("label", "sample", "step"))
    return Datapoints(np.asarray(columns["dataset"], dtype=object), labels, samples, steps)


def ask_key_norms(memory: Engine, layer: str) -> NDArray[np.float64]:
    """float64[T]: the length of each slot's key, in float64."""
    count = sum(memory.info().slots.values())
    # Where inputs repeat, each distinct key is stored, and measured, once.
    _, first, rows = np.unique(memory.key_rows(layer, np.arange(count)), return_index=True, return_inverse=True)
    norms = np.empty(len(first))
    for start in range(0, len(first), _ROWS):
        keys = memory.keys(layer, first[start : start + _ROWS]).astype(np.float64)
        norms[start : start + _ROWS] = np.sqrt(np.einsum("td,td->t", keys, keys))
    return norms[rows]


TOP = 3
"""The paper shows the three training images of greatest weight."""
_BY = ("dataset", "label")
_AT_ONCE = 1024
"""Queries of one question: their scores take memory together."""


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of all test images of a dataset at one layer."""

    layer: str
    groups: tuple[GroupKey, ...]
    """(dataset, label) of each group: the classes of the datasets that were trained on, in the order of training."""
    sums: NDArray[np.float64]
    """float64[n, G]: the absolute attention weights of each group summed; 0 of a class without datapoints."""
    best: NDArray[np.int64]
    """int64[n, TOP]: the images of greatest absolute weight, as `best_images` numbers them."""

    def columns(self, dataset: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the groups of labels of one dataset."""
        numbers = {label: at for at, (name, label) in enumerate(self.groups) if name == dataset}
        return np.array([numbers[label] for label in labels.tolist()], dtype=np.int64)

    def leading(self) -> NDArray[np.int64]:
        """int64[n]: the group with the greatest sum."""
        leading: NDArray[np.int64] = self.sums.argmax(axis=1)
        return leading

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[n, G]: of all attention of each image, from 0 to 1; 0 of an image that attends to nothing."""
        total = self.sums.sum(axis=1, keepdims=True)
        shares: NDArray[np.float64] = np.divide(self.sums, total, out=np.zeros_like(self.sums), where=total > 0)
        return shares

    def ranks(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the rank of one group of each image among all sums, 1 for the greatest."""
        own = self.sums[np.arange(len(self.sums)), columns]
        return np.asarray(1 + (self.sums > own[:, None]).sum(axis=1), dtype=np.int64)


def ask_attention(
    memory: Answers,
    layers: Sequence[str],
    checkpoint: Checkpoint,
    datasets: Sequence[Dataset],
    datapoints: Datapoints,
) -> list[LayerAttention]:
    """Sums over classes and the best images of every test image of a checkpoint, layer by layer."""
    found = []
    rows = np.arange(len(checkpoint.dataset.test))
    for layer in layers:
        query_set, where = QuerySetExamples(checkpoint.query_set), checkpoint.where
        answer = memory.group_sum(layer, query_set, by=_BY, where=where, score="abs")
        best = best_images(memory, layer, checkpoint.query_set, rows, datapoints, where, "abs")
        found.append(LayerAttention(layer, classes_of(datasets), _spread(answer.sums, answer.groups, datasets), best))
    return found


def best_images(
    memory: Answers,
    layer: str,
    query_set: str,
    rows: NDArray[np.int64],
    datapoints: Datapoints,
    where: str | None,
    score: str,
) -> NDArray[np.int64]:
    """int64[n, TOP]: the images of greatest score of each row of a query set, best first, numbered as
    `Datapoints.images`.

    An image's score is that of its best visit. Visits are those of the mask `where`; the best image stands again where
    there are fewer than TOP.
    """
    slots = best_slots(memory, layer, query_set, rows, enough_for_distinct(datapoints), where, score)
    return distinct(datapoints.images[slots])


def enough_for_distinct(datapoints: Datapoints) -> int:
    """How many best slots surely hold TOP images, where there are as many."""
    slots = (TOP - 1) * int(datapoints.visits.max()) + 1
    return min(slots, len(datapoints.images))


def distinct(best: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n, TOP]: the first images of each row that differ, in their order; the first again if there are fewer."""
    rows = [list(dict.fromkeys(row))[:TOP] for row in best.tolist()]
    return np.array([row + row[:1] * (TOP - len(row)) for row in rows], dtype=np.int64)


def best_slots(
    memory: Answers, layer: str, query_set: str, rows: NDArray[np.int64], k: int, where: str | None, score: str
) -> NDArray[np.int64]:
    """int64[n, k]: the k slots of greatest score of each row of a query set, best first; fewer than k if there are no
    more.

    The slots are those of the mask `where`.
    """
    parts = []
    for start in range(0, len(rows), _AT_ONCE):
        queries = QuerySetExamples(query_set, tuple(rows[start : start + _AT_ONCE].tolist()))
        hits = memory.topk(layer, queries, k=k, where=where, score=score)
        parts.append(hits.ids.reshape(len(hits), -1))
    return np.concatenate(parts)


def sampled_rows(images: int, count: int, seed: int) -> NDArray[np.int64]:
    """int64[count], ascending: test images drawn by chance, all of them where there are no more."""
    drawn = np.random.default_rng(seed).choice(images, min(count, images), replace=False)
    return np.sort(drawn).astype(np.int64)


def ask_greatest(
    memory: Answers, layer: str, checkpoint: Checkpoint, rows: NDArray[np.int64], datasets: Sequence[Dataset]
) -> NDArray[np.float64]:
    """float64[n, G]: the greatest absolute weight in each class, of some test images; 0 without datapoints."""
    queries = QuerySetExamples(checkpoint.query_set, tuple(rows.tolist()))
    hits = memory.topk(layer, queries, k=1, where=checkpoint.where, by=_BY, score="abs")
    scores = hits.flat_scores.reshape(len(rows), -1).astype(np.float64)
    return _spread(scores, hits.groups or (), datasets)


def classes_of(datasets: Sequence[Dataset]) -> tuple[GroupKey, ...]:
    """Every class of every dataset, whether or not the training has seen it."""
    return tuple((dataset.name, label) for dataset in datasets for label in range(len(dataset.label_names)))


def _spread(
    values: NDArray[np.float64], groups: Sequence[GroupKey], datasets: Sequence[Dataset]
) -> NDArray[np.float64]:
    """Columns of `groups` put where `classes_of` has them."""
    classes = classes_of(datasets)
    spread = np.zeros((len(values), len(classes)))
    spread[:, [classes.index(group) for group in groups]] = values
    return spread
