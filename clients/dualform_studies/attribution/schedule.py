"""Which images are in which batch, of one training and of those that leave some out.

Shapes: n images, m trainings, b images of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Step:
    """One batch of every training."""

    rows: Rows
    """int64[b], where all trainings share it, or int64[m, b]."""
    weights: NDArray[np.float32]
    """float32[m, b]: of each image's loss in the loss of its batch."""


def epochs_of(count: int, epochs: int, seed: int) -> Rows:
    """int64[epochs, n]: all images in a new order for each epoch."""
    draw = np.random.default_rng(seed)
    return np.stack([draw.permutation(count) for _ in range(epochs)])


def batches_of(order: Rows, batch: int) -> list[Rows]:
    """int64[b] of every step; the last of an epoch has what is left of it."""
    return [epoch[start : start + batch] for epoch in order for start in range(0, len(epoch), batch)]


def whole(order: Rows, batch: int, trainings: int = 1) -> list[Step]:
    """Every training has all images."""
    return left_out(order, batch, [np.empty(0, dtype=np.int64)] * trainings)


def left_out(order: Rows, batch: int, absent: Sequence[Rows]) -> list[Step]:
    """The same batches, in which the images absent from a training weigh nothing. All others weigh what they did, so
    that removing an image removes its gradients and changes nothing else (Wang et al., 2024: trajectory-specific
    leave-one-out).
    """
    present = np.ones((len(absent), order.shape[1]), dtype=np.float32)
    for training, rows in enumerate(absent):
        present[training, rows] = 0
    return [Step(rows, present[:, rows] / np.float32(len(rows))) for rows in batches_of(order, batch)]


def subsets(order: Rows, batch: int, kept: Sequence[Rows]) -> list[Step]:
    """Batches as a loader over each subset would make them: the same order of images, of which those that are not kept
    are passed over. All subsets have as many images.

    Raises ValueError where they do not.
    """
    if len({len(rows) for rows in kept}) > 1:
        raise ValueError("subsets that are trained on together have equally many images")
    stays = np.zeros((len(kept), order.shape[1]), dtype=bool)
    for training, rows in enumerate(kept):
        stays[training, rows] = True
    own = [np.stack([epoch[one[epoch]] for one in stays]) for epoch in order]
    steps = [rows[:, start : start + batch] for rows in own for start in range(0, rows.shape[1], batch)]
    return [Step(rows, np.full(rows.shape, 1 / rows.shape[1], dtype=np.float32)) for rows in steps]
