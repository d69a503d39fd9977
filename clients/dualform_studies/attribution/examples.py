"""The images that are trained on and those that are attributed. Shapes: n images, d pixels of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.images.data.datasets import Dataset, Images


@dataclass(frozen=True, eq=False)
class Examples:
    inputs: Tensor
    """float32[n, d]: pixels from -1 to 1, as dattri's benchmark has them."""
    labels: Tensor
    """int64[n]."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return 10

    def of(self, rows: NDArray[np.int64] | slice) -> Examples:
        """Some of them."""
        return Examples(self.inputs[rows], self.labels[rows])


def first_examples(dataset: Dataset, images: Images, count: int) -> Examples:
    """The first images of a file."""
    pixels = torch.from_numpy(images.pixels[:count].astype(np.float32))
    return Examples(pixels / (dataset.brightest / 2) - 1, torch.from_numpy(images.labels[:count].copy()))


def flipped(examples: Examples, share: float, seed: int) -> tuple[Examples, NDArray[np.bool_]]:
    """The same images, a share of them with another label, each of the others as likely; bool[n], whose label it is."""
    draw = np.random.default_rng(seed)
    wrong = np.zeros(len(examples), dtype=bool)
    wrong[draw.choice(len(examples), size=round(share * len(examples)), replace=False)] = True
    labels = examples.labels.numpy().copy()
    labels[wrong] = (labels[wrong] + draw.integers(1, examples.classes, size=int(wrong.sum()))) % examples.classes
    return replace(examples, labels=torch.from_numpy(labels)), wrong
