"""Floors, and dualform's ways to attribute the losses of tests to training samples.

Scores are float64[t, n] of t tests and n samples: the greater, the more a sample is said to lower a test's loss.
Attention knows no losses: its scores are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform_studies.attribution.recipes import Recipe
from dualform_studies.attribution.training import QUERY_SET, Trained

Scores: TypeAlias = NDArray[np.float64]
Way: TypeAlias = Callable[[Trained], Scores]


def floors(text: bool) -> dict[str, Way]:
    """Ways that look at no training; `text`: of windows, which have no labels."""
    found: dict[str, Way] = {"random": random}
    if not text:
        found["same label"] = same_label
    return found


def ours(recipe: Recipe) -> dict[str, Way]:
    found: dict[str, Way] = {"attention": attention}
    if not recipe.text:
        found["contribution"] = contribution
    if recipe.every_way:
        found |= {"GradDot": graddot, "ledger": ledger}
    return found | {"adjoint": adjoint}


def random(trained: Trained) -> Scores:
    shape = len(trained.tested.targets), len(trained.trained.targets)
    return np.random.default_rng(trained.seed).normal(size=shape)


def same_label(trained: Trained) -> Scores:
    same = trained.tested.targets[:, None] == trained.trained.targets
    return np.asarray(same.double().numpy())


def attention(trained: Trained) -> Scores:
    """Cosines of what the output layer takes, summed over the tokens of windows."""
    return _sums(trained, _output_layer(trained), score="cosine")


def contribution(trained: Trained) -> Scores:
    """What a sample brought to the margin of a test's label over the strongest other output, in the output layer."""
    with torch.no_grad():
        outputs = trained.network(trained.tested.inputs)
    rows, labels = torch.arange(len(outputs)), trained.tested.targets
    others = outputs.clone()
    others[rows, labels] = -torch.inf
    margin = torch.zeros_like(outputs)
    margin[rows, labels] += 1
    margin[rows, others.argmax(1)] -= 1
    return _sums(trained, _output_layer(trained), score="contribution", target=margin.numpy())


def graddot(trained: Trained) -> Scores:
    """Dot products of a sample's gradients while it was trained on with a test's at the end, in all layers."""
    return _sums(trained, "*", score="gradient")


def ledger(trained: Trained) -> Scores:
    """The change of a test's loss in all updates, by the samples that made them."""
    examples = dualform.Influence(
        QUERY_SET, trained.tested.inputs, trained.tested.targets, trained.loss, by=("sample",), method="path"
    )
    found = dualform.ledger(trained.memory, trained.network, examples)
    return -_in_order(trained, found.groups, found.sums)


def adjoint(trained: Trained) -> Scores:
    """The derivative of a test's loss with respect to a sample's weight, through all updates."""

    def batches(step: int, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return trained.trained.of(torch.from_numpy(samples))

    def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return trained.loss(outputs, targets).mean()

    asked = mean_loss if trained.one_query else trained.loss
    found = dualform.adjoint(trained.memory, trained.network, trained.tested, asked, batches, trained.loss)
    scores = np.zeros((len(found), len(trained.trained.targets)))
    scores[:, found.samples] = found.values
    return scores


def _sums(trained: Trained, layer: str, **asked: Any) -> Scores:
    with dualform.open(trained.memory) as memory:
        found = memory.group_sum(layer, QUERY_SET, by="sample", **asked)
    sums = np.asarray(found.sums, dtype=np.float64).reshape(len(trained.tested.targets), -1, len(found.groups))
    return _in_order(trained, found.groups, sums.sum(axis=1))


def _in_order(trained: Trained, groups: Any, sums: Scores) -> Scores:
    """In the order of the samples; one that is in no group has 0."""
    scores = np.zeros((len(sums), len(trained.trained.targets)))
    scores[:, [int(sample) for (sample,) in groups]] = sums
    return scores


def _output_layer(trained: Trained) -> str:
    names: list[str] = [name for name, own in trained.network.named_modules() if isinstance(own, nn.Linear)]
    return names[-1]
