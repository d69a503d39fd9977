"""Boosted training: head one alone and longer, frozen, then head two, then head three; beside free training.

The text leaves open what happens to the embeddings while later heads learn. Both readings are run: "frozen" freezes
them with head one, so that each later head corrects a fixed prediction, as boosting proper does; "shared" lets them
go on, and freezes the earlier heads alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dualform_studies.memorisation.ensemble import Curve, Ensemble, Optimize
from dualform_studies.memorisation.facts import draw_facts
from dualform_studies.memorisation.network import HEAD_WIDTH, HEADS, PROJECTIONS, build_network
from dualform_studies.memorisation.training import Recipe
from dualform_studies.progress import Progress, counting

WAYS = {
    "free": "free, all heads at once",
    "adam": "free, by Adam",
    "shared": "boosted, embeddings go on learning",
    "frozen": "boosted, embeddings frozen with head 1",
}


def train_ways(recipe: Recipe, seeds: Sequence[int], progress: Progress | None = None) -> dict[str, Curve]:
    """The learning curves of each way to train, over the same seeds: one gives both facts and initial network."""
    sgd: Optimize = partial(torch.optim.SGD, lr=recipe.lr, momentum=recipe.momentum)
    adam: Optimize = partial(torch.optim.Adam, lr=recipe.adam_lr)
    curves = {}
    for way, words in WAYS.items():
        ensemble = Ensemble([build_network(seed) for seed in seeds], [draw_facts(seed) for seed in seeds])
        if way in ("free", "adam"):
            say = counting(progress, words, recipe.steps)
            ensemble.train(recipe.steps, sgd if way == "free" else adam, say=say)
        else:
            _boost(ensemble, recipe, sgd, way == "shared", progress, words)
        curves[way] = ensemble.curve
    return curves


def _boost(
    ensemble: Ensemble, recipe: Recipe, optimize: Optimize, shared: bool, progress: Progress | None, words: str
) -> None:
    for head in range(HEADS):
        steps = recipe.later_steps if head else recipe.steps
        ensemble.train(
            steps,
            optimize,
            heads=(torch.arange(HEADS) <= head).float()[None],
            learns=learning(head, shared or head == 0),
            say=counting(progress, f"{words}: head {head + 1}", steps),
        )


def learning(head: int, embeddings: bool) -> dict[str, Tensor]:
    """Masks of the numbers that learn while one head does, and the embeddings where `embeddings`."""
    rows = (torch.arange(HEADS * HEAD_WIDTH) // HEAD_WIDTH == head).float()
    masks = {f"{name}.weight": rows[:, None] for name in PROJECTIONS} | {"output.weight": rows[None, :]}
    outside = torch.tensor(float(embeddings))
    return masks | {f"{name}.weight": outside for name in ("word", "position", "unembedding")}


def boundaries(recipe: Recipe) -> list[int]:
    """The steps at which boosted training turns to the next head."""
    return [recipe.steps + head * recipe.later_steps for head in range(HEADS - 1)]
