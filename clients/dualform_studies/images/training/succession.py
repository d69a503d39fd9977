"""Two datasets learned one after the other by one network and one optimizer (paper section 5.4)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import Recorder
from dualform.query.engine import Engine
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.previews import examples_of, trained_preview_set
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training.network import build_network, predictions, with_weights
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import query_set_name
from dualform_studies.images.training.updates import train_part
from dualform_studies.progress import Progress

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
    pair: Pair, recipe: Recipe, seed: int, *, record_to: Path | None = None, progress: Progress | None = None
) -> TrainedNetwork:
    """Train a fresh network on both datasets, recorded into the folder `record_to` where there is one.

    A recorded training stores the query sets `test-NAME`, all test images of each dataset with their labels, at its
    end, and what both kinds of images look like.
    Raises AlreadyExists where the folder holds something.
    """
    network = build_network(recipe.widths(pair[0]), seed)
    optimizer = recipe.optimizer(network)
    if record_to is None:
        return _train(network, optimizer, pair, recipe, seed, None, progress)
    names = {dataset.name: list(dataset.label_names) for dataset in pair}
    recorder = Recorder(network, optimizer, record_to, values=True, label_names=names, quiet=True)
    with recorder:
        trained = _train(network, optimizer, pair, recipe, seed, recorder, progress)
        for dataset in pair:
            recorder.previews(dataset.name, trained_preview_set(dataset))
            images, preview_set = torch.from_numpy(dataset.inputs(dataset.test)), examples_of(dataset)
            recorder.query_set(query_set_name(dataset), images, label=dataset.test.labels, previews=preview_set)
    return trained


def _train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    pair: Pair,
    recipe: Recipe,
    seed: int,
    recorder: Recorder | None,
    progress: Progress | None,
) -> TrainedNetwork:
    seconds, weights, states = 0.0, [], []
    for part, dataset in enumerate(pair):
        start = perf_counter()
        train_part(network, optimizer, dataset, recipe, seed=seed, part=part, recorder=recorder, progress=progress)
        if recorder is not None:
            recorder.flush()
        seconds += perf_counter() - start
        weights.append(copied(network))
        states.append(deepcopy(optimizer.state_dict()))
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

    def masked(self, query: Query) -> int:
        """The class that the network gives a test image once the second dataset is masked."""
        return int(self.classes["masked"][query.dataset.name][query.row])

    def interfered(self, mistake: tuple[int, int] | None = None) -> NDArray[np.int64]:
        """Test rows of the first dataset: right after it was learned, wrong at the end, right again with the mask.

        Of these, with `mistake`, such as (1, 3), those of its first class that are taken for its second.
        """
        first = self.pair[0]
        right = self.recognised(first)
        wanted = right["after_first"] & ~right["final"] & right["masked"]
        if mistake is not None:
            wanted &= (first.test.labels == mistake[0]) & (self.classes["final"][first.name] == mistake[1])
        return np.flatnonzero(wanted)


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


def judge(weights: Mapping[str, Weights], pair: Pair, recipe: Recipe) -> Verdict:
    """Classify all test images of both datasets with the network of each moment."""
    networks = {moment: with_weights(recipe.widths(pair[0]), held) for moment, held in weights.items()}
    return Verdict(
        pair,
        {
            moment: {dataset.name: predictions(network, dataset, dataset.test) for dataset in pair}
            for moment, network in networks.items()
        },
    )
