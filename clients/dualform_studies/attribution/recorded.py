"""One training recorded, with the examples to attribute as a query set, and the checkpoints that other packages ask
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform_studies.attribution.examples import Examples
from dualform_studies.attribution.recipe import Recipe, seed_of_step
from dualform_studies.attribution.schedule import Rows, batches_of
from dualform_studies.progress import Progress, or_silent

QUERY_SET = "attributed"
_CHECKPOINTS = 5


@dataclass(frozen=True, eq=False)
class Recorded:
    """A training that is done, and everything that a way to attribute may ask of it."""

    folder: Path
    """Of the memory."""
    trained: Examples
    attributed: Examples
    network: nn.Sequential
    """As training left it, in eval mode."""
    checkpoints: tuple[Mapping[str, Tensor], ...]
    """State dicts at equal distances in epochs, the last of them that of the end."""
    recipe: Recipe
    seed: int
    seconds: float
    """Of the training, until all is on disk."""


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example."""
    return cross_entropy(outputs, labels, reduction="none")


def record(
    trained: Examples,
    attributed: Examples,
    recipe: Recipe,
    seed: int,
    order: Rows,
    folder: Path,
    progress: Progress | None = None,
) -> Recorded:
    """Train the network of the seed on batches in this order (`epochs_of`), with SGD and autograd as anyone would."""
    network = recipe.build(trained.inputs.shape[1], trained.classes, seed)
    optimizer = recipe.optimizer(network.parameters())
    steps = batches_of(order, recipe.batch)
    kept = _moments(len(order), len(steps))
    checkpoints, start, say = list[Mapping[str, Tensor]](), perf_counter(), or_silent(progress)
    with Recorder(network, optimizer, folder, quiet=True) as recorder:
        for number, batch in enumerate(steps):
            rows = torch.from_numpy(batch)
            with recorder.step(dataset="mnist", label=trained.labels[rows], sample=batch):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed_of_step(seed, number))
                    loss = losses(network(trained.inputs[rows]), trained.labels[rows]).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            if number + 1 in kept:
                checkpoints.append({name: own.detach().clone() for name, own in network.state_dict().items()})
            say("training", number + 1, len(steps))
        recorder.flush()
        seconds = perf_counter() - start
        recorder.query_set(QUERY_SET, attributed.inputs, label=attributed.labels, loss=losses)
    return Recorded(folder, trained, attributed, network.eval(), tuple(checkpoints), recipe, seed, seconds)


def _moments(epochs: int, steps: int) -> set[int]:
    """Numbers of updates behind which a checkpoint is kept."""
    a_epoch = steps // epochs
    return {a_epoch * round(epoch) for epoch in np.linspace(0, epochs, _CHECKPOINTS + 1)[1:]}
