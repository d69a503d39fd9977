"""Boosted training: head one alone and longer, frozen, then head two, and so on; beside free training.

The text leaves open what happens to the embeddings while later heads learn. Both readings are run: "frozen" freezes
them with head one, so that each later head corrects a fixed prediction, as boosting proper does; "shared" lets them
go on, and freezes the earlier heads alone. Each is run by SGD, which the memory knows, and by Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualform_studies.memorisation.transformer.ensemble import Ensemble, Look, Optimize, ensemble_of
from dualform_studies.memorisation.transformer.network import HEAD_WIDTH, HEADS, PROJECTIONS
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.progress import Progress, counting


@dataclass(frozen=True)
class HeadTraining:
    """One way to train."""

    optimizer: Literal["SGD", "Adam"]
    heads: Literal["free", "shared", "frozen"]
    """All at once; or boosted, where the embeddings go on learning, or are frozen with head 1."""

    @property
    def words(self) -> str:
        return f"{HEADS_WORDS[self.heads]}, by {self.optimizer}"


HEADS_WORDS = {
    "free": "free, all heads at once",
    "shared": "boosted, embeddings go on learning",
    "frozen": "boosted, embeddings frozen with head 1",
}
WAYS = {
    "free": HeadTraining("SGD", "free"),
    "shared": HeadTraining("SGD", "shared"),
    "frozen": HeadTraining("SGD", "frozen"),
    "adam free": HeadTraining("Adam", "free"),
    "adam shared": HeadTraining("Adam", "shared"),
    "adam frozen": HeadTraining("Adam", "frozen"),
}


def train_ways(
    recipe: Recipe, seeds: Sequence[int], free: Ensemble, progress: Progress | None = None
) -> dict[str, Ensemble]:
    """The networks of each way to train, over the same seeds: one gives both facts and initial network.

    `free` are those that were trained freely by SGD.
    """
    trained = {"free": free}
    for name, way in WAYS.items():
        if name in trained:
            continue
        ensemble, optimize = ensemble_of(seeds), recipe.sgd if way.optimizer == "SGD" else recipe.adam
        if way.heads == "free":
            ensemble.train(recipe.steps, optimize, say=counting(progress, way.words, recipe.steps))
        else:
            boost(ensemble, recipe, optimize, way.heads == "shared", progress, way.words)
        trained[name] = ensemble
    return trained


def boost(
    ensemble: Ensemble, recipe: Recipe, optimize: Optimize, shared: bool, progress: Progress | None, words: str
) -> None:
    """Train head after head, each with the earlier ones speaking and frozen."""
    for head in range(ensemble.heads):
        train_head(
            ensemble, head, recipe.later_steps if head else recipe.steps, optimize, shared or head == 0,
            progress=progress, words=f"{words}: head {head + 1}",
        )  # fmt: skip


def train_head(
    ensemble: Ensemble, head: int, steps: int, optimize: Optimize, embeddings: bool, *,
    look: Look | None = None, progress: Progress | None, words: str,
) -> None:  # fmt: skip
    """Train one head, and the embeddings where `embeddings`; the later heads are silent."""
    ensemble.train(
        steps,
        optimize,
        heads=(torch.arange(ensemble.heads) <= head).float()[None],
        learns=learning(head, embeddings, ensemble.heads),
        look=look,
        say=counting(progress, words, steps),
    )


def learning(head: int, embeddings: bool, heads: int = HEADS) -> dict[str, Tensor]:
    """Masks of the numbers that learn while one head does, and the embeddings where `embeddings`."""
    rows = (torch.arange(heads * HEAD_WIDTH) // HEAD_WIDTH == head).float()
    masks = {f"{name}.weight": rows[:, None] for name in PROJECTIONS} | {"output.weight": rows[None, :]}
    outside = torch.tensor(float(embeddings))
    return masks | {f"{name}.weight": outside for name in ("word", "position", "unembedding")}


def boundaries(recipe: Recipe, heads: int = HEADS) -> list[int]:
    """The steps at which boosted training turns to the next head, or is at its end."""
    return [recipe.steps + head * recipe.later_steps for head in range(heads)]
