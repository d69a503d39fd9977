"""How many heads are enough for each to remember a set of its own: constructed, trained to, boosted, and left free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.boosting import HEADS_WORDS, boost, boundaries, fresh, optimizers
from dualform_studies.memorisation.construction import Constructed, construct
from dualform_studies.memorisation.ensemble import Ensemble
from dualform_studies.memorisation.facts import draw_facts
from dualform_studies.memorisation.overlap import Alone, heads_alone
from dualform_studies.memorisation.own_sets import OwnSets, train_own_sets
from dualform_studies.memorisation.training import Recipe
from dualform_studies.progress import Progress, counting, or_silent


@dataclass(frozen=True, eq=False)
class ManyHeads:
    """Networks of each number of heads, from 1 on; each is trained with the same seeds."""

    own_sets: list[OwnSets]
    """Trained to give every head a set of its own."""
    free: list[list[Alone]]
    """Trained on all pairs at once: what the heads know alone."""
    boosted: dict[str, NDArray[np.float64]]
    """By whether embeddings go on learning ("shared") or not ("frozen"), float64[H, M]: accuracy after each head."""
    constructed: list[Alone | None]
    """By seed: what the heads of the constructed network know alone; None where none can be (construction.py)."""

    def free_accuracy(self) -> NDArray[np.float64]:
        """float64[H, M]: of all heads together."""
        return np.array([[one.together.mean() for one in networks] for networks in self.free])

    def enough(self, share: float) -> int | None:
        """The least number of heads with which this share of the networks gave every head its set; None if none."""
        return next((sets.heads for sets in self.own_sets if sets.succeeded.mean() >= share - 1e-9), None)

    def constructed_heads(self) -> list[int]:
        """How many heads each constructed network has whose heads proved to part all pairs between them."""
        return [
            len(one.known) for one in self.constructed if one is not None and one.is_partition and one.together.all()
        ]


def train_many_heads(recipe: Recipe, seeds: Sequence[int], progress: Progress | None = None) -> ManyHeads:
    numbers = range(1, recipe.most_heads + 1)
    return ManyHeads(
        [train_own_sets(recipe, seeds, heads, progress) for heads in numbers],
        [_free(recipe, seeds, heads, progress) for heads in numbers],
        {way: _boosted(recipe, seeds, way == "shared", progress) for way in ("shared", "frozen")},
        _constructed(recipe, seeds, progress),
    )


def _free(recipe: Recipe, seeds: Sequence[int], heads: int, progress: Progress | None) -> list[Alone]:
    ensemble = fresh(seeds, heads)
    say = counting(progress, f"{heads} heads at once", recipe.steps)
    ensemble.train(recipe.steps, optimizers(recipe)["SGD"], say=say)
    return heads_alone(ensemble)


def _boosted(recipe: Recipe, seeds: Sequence[int], shared: bool, progress: Progress | None) -> NDArray[np.float64]:
    """float64[H, M]: one training of all heads passes through those of fewer."""
    ensemble = fresh(seeds, recipe.most_heads)
    words = HEADS_WORDS["shared" if shared else "frozen"]
    boost(ensemble, recipe, optimizers(recipe)["SGD"], shared, progress, words)
    curve = ensemble.curve
    return np.stack([curve.accuracy[curve.at(step)] for step in boundaries(recipe, recipe.most_heads)])


def _constructed(recipe: Recipe, seeds: Sequence[int], progress: Progress | None) -> list[Alone | None]:
    say, found = or_silent(progress), []
    for done, seed in enumerate(seeds, start=1):
        facts = draw_facts(seed)
        made: Constructed | None = construct(facts, seed, recipe.arrangements)
        found.append(None if made is None else heads_alone(Ensemble([made.network], [facts]))[0])
        say("setting parameters by hand", done, len(seeds))
    return found
