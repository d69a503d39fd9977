"""Networks trained as the study's own is, with facts and starts of their own: does what one shows hold of others?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from dualform_studies.memorisation.ensemble import Ensemble
from dualform_studies.memorisation.facts import draw_facts
from dualform_studies.memorisation.network import AttentionOnly, build_network, with_weights
from dualform_studies.memorisation.training import Recipe
from dualform_studies.progress import Progress, counting


def train_siblings(recipe: Recipe, seeds: Sequence[int], progress: Progress | None = None) -> list[AttentionOnly]:
    """A network of each seed, by the recipe of the recorded training; nothing is recorded."""
    if not seeds:
        return []
    ensemble = Ensemble([build_network(seed) for seed in seeds], [draw_facts(seed) for seed in seeds])
    optimize = partial(torch.optim.SGD, lr=recipe.lr, momentum=recipe.momentum)
    ensemble.train(recipe.steps, optimize, say=counting(progress, "networks alike", recipe.steps))
    return [with_weights(ensemble.weights(member)).eval() for member in range(len(seeds))]
