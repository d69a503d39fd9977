"""Which of a dataset's training images a study trains on. Shapes: n images of the file, k kept, m trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ORDER_SEED, _CHOICE_SEED = 0x1234, 0xC1CAFA52
"""Those of the paper's code."""
_LEFT_OUT = 0.2
"""Chance of a kept image to be left out of training: the code's second validation set."""


@dataclass(frozen=True, eq=False)
class Split:
    kept: NDArray[np.int64]
    """int64[k]: the rows of the file that give mean and deviation; the others are held out for validation."""
    trained: NDArray[np.int64]
    """int64[m]: those of `kept` that are trained on."""


def draw_split(images: int, draw: int = 0) -> Split:
    """The split of the paper's code: of 60,000 images 50,000 are kept, and 40,053 of them trained on.

    A sixth of another number of images is held out. The draw depends on nothing else, so every seed of a training and
    every dataset of a size has the same rows; `draw` other than 0 gives others by the same rule.
    """
    order = np.random.RandomState(_ORDER_SEED + draw).permutation(images).astype(np.int64)
    return choose_trained(order[: images - images // 6], draw)


def choose_trained(kept: NDArray[np.int64], draw: int = 0) -> Split:
    """The split of rows of which none are held out any more: each is trained on with a chance of 0.8."""
    return Split(kept, kept[np.random.RandomState(_CHOICE_SEED + draw).rand(len(kept)) > _LEFT_OUT])


def every_row(images: int) -> Split:
    """Nothing held out: all images are trained on."""
    rows = np.arange(images)
    return Split(rows, rows)
