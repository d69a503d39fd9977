"""The training datapoints of a memory, and the images that they are visits of. Shapes: T slots, I images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.query.engine import Engine

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
