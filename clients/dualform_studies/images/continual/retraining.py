"""The second part of a succession trained again, without what a mask leaves out.

Every retraining goes on from what the first part left, network and momentum alike, so that only the second is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dualform_studies.images.continual.masking import Part
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.training.network import with_weights
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import batch_rows, batches
from dualform_studies.images.training.succession import Pair, TrainedNetwork, Weights, copied
from dualform_studies.images.training.updates import train
from dualform_studies.progress import Progress

_SECOND = 1


def retrain(
    trained: TrainedNetwork,
    chosen: Sequence[Part],
    pair: Pair,
    recipe: Recipe,
    seed: int,
    progress: Progress | None = None,
) -> list[Weights]:
    """The network that training without each part gives.

    Without its last steps, training ends so many steps earlier. Without a class, it takes as many steps on the images
    of the other classes, which come in the same order as before.
    """
    stops = sorted({recipe.steps - part.last for part in chosen if part.label is None})
    stopped = dict(zip(stops, stop_at(trained, stops, pair, recipe, seed), strict=True))
    found = []
    for done, part in enumerate(chosen):
        if progress is not None:
            progress("retraining", done, len(chosen))
        if part.label is None:
            found.append(stopped[recipe.steps - part.last])
        else:
            found.append(leave_out(trained, part.label, pair, recipe, seed))
    return found


def stop_at(trained: TrainedNetwork, stops: Sequence[int], pair: Pair, recipe: Recipe, seed: int) -> list[Weights]:
    """The weights after so many updates on the second dataset; `stops` ascend, from 0 to recipe.steps at most."""
    network, optimizer = _after_first(trained, pair, recipe)
    second = pair[1]
    stream = batches(second, batch_rows(second.split.trained, recipe, seed, _SECOND))
    found = []
    for done, stop in pairwise((0, *stops)):
        train(network, optimizer, islice(stream, stop - done), recipe.clip)
        found.append(copied(network))
    return found


def leave_out(trained: TrainedNetwork, label: int, pair: Pair, recipe: Recipe, seed: int) -> Weights:
    """The weights after recipe.steps updates on the second dataset without the images of one class."""
    network, optimizer = _after_first(trained, pair, recipe)
    second = pair[1]
    train(network, optimizer, batches(second, _rows_without(label, second, recipe, seed)), recipe.clip)
    return copied(network)


def _rows_without(label: int, dataset: Dataset, recipe: Recipe, seed: int) -> Iterator[NDArray[np.int64]]:
    """The rows of the order that the whole dataset was trained in, without one class, in full batches."""
    endless = batch_rows(dataset.split.trained, replace(recipe, steps=sys.maxsize), seed, _SECOND)
    waiting = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(waiting) < recipe.batch:
            rows = next(endless)
            waiting = np.concatenate([waiting, rows[dataset.train.labels[rows] != label]])
        yield waiting[: recipe.batch]
        waiting = waiting[recipe.batch :]


def _after_first(trained: TrainedNetwork, pair: Pair, recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and an optimizer of their own, as they were when the first dataset was done."""
    network = with_weights(recipe.widths(pair[0]), trained.after_first)
    optimizer = recipe.optimizer(network)
    # A copy: loading shares the tensors, and the updates to come change them in place.
    optimizer.load_state_dict(deepcopy(trained.optimizer_after_first))
    return network, optimizer
