"""How many heads are enough for each to remember a set of its own: constructed, trained to, boosted, and left free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.boosting.ways import HEADS_WORDS, boost, boundaries
from dualform_studies.memorisation.heads.construction import construct
from dualform_studies.memorisation.heads.overlap import Alone, heads_alone
from dualform_studies.memorisation.heads.own_sets import OwnSets, train_own_sets
from dualform_studies.memorisation.transformer.ensemble import Ensemble, ensemble_of
from dualform_studies.memorisation.transformer.facts import draw_facts
from dualform_studies.memorisation.transformer.network import HEADS
from dualform_studies.memorisation.transformer.siblings import train_siblings
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.progress import Progress, or_silent


@dataclass(frozen=True, eq=False)
class ByHand:
    """A network whose parameters were set and not trained."""

    owned: NDArray[np.bool_]
    """bool[H, P]: the pairs that each head was made to know."""
    alone: Alone
    """What its heads know alone."""

    @property
    def proved(self) -> bool:
        """Whether each head alone knows the pairs that it was made to know and no other, and all heads know all."""
        return bool(np.array_equal(self.alone.known, self.owned) and self.alone.together.all())


@dataclass(frozen=True, eq=False)
class ManyHeads:
    """Networks of each number of heads, from 1 on; each is trained with the same seeds."""

    own_sets: list[OwnSets]
    """Trained to give every head a set of its own."""
    free: list[list[Alone]]
    """Trained on all pairs at once: what the heads know alone."""
    boosted: dict[str, NDArray[np.float64]]
    """By whether embeddings go on learning ("shared") or not ("frozen"), float64[H, M]: accuracy after each head."""
    by_hand: list[ByHand | None]
    """By seed; None where no network can be set by hand (construction.py)."""

    def free_accuracy(self) -> NDArray[np.float64]:
        """float64[H, M]: of all heads together."""
        return np.array([[one.together.mean() for one in networks] for networks in self.free])

    def enough(self, share: float) -> int | None:
        """The least number of heads with which, and with every larger number, this share of the networks gave every
        head its set; None if the largest number is too small."""
        too_few = [sets.heads for sets in self.own_sets if sets.succeeded.mean() < share - 1e-9]
        least = max(too_few, default=0) + 1
        return least if least <= len(self.own_sets) else None

    def heads_by_hand(self) -> list[int]:
        """How many heads each network that was set by hand and proved has."""
        return [len(one.owned) for one in self.by_hand if one is not None and one.proved]


def train_many_heads(
    recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None = None
) -> ManyHeads:
    """`siblings` are the networks of three heads of these seeds, trained freely."""
    numbers = range(1, recipe.most_heads + 1)
    return ManyHeads(
        [train_own_sets(recipe, seeds, heads, progress) for heads in numbers],
        [
            heads_alone(siblings if heads == HEADS else train_siblings(recipe, seeds, heads, progress))
            for heads in numbers
        ],
        {way: _boosted(recipe, seeds, way == "shared", progress) for way in ("shared", "frozen")},
        _by_hand(recipe, seeds, progress),
    )


def _boosted(recipe: Recipe, seeds: Sequence[int], shared: bool, progress: Progress | None) -> NDArray[np.float64]:
    """float64[H, M]: one training of all heads passes through those of fewer."""
    ensemble = ensemble_of(seeds, recipe.most_heads)
    words = HEADS_WORDS["shared" if shared else "frozen"]
    boost(ensemble, recipe, recipe.sgd, shared, progress, words)
    curve = ensemble.curve
    return np.stack([curve.accuracy[curve.at(step)] for step in boundaries(recipe, recipe.most_heads)])


def _by_hand(recipe: Recipe, seeds: Sequence[int], progress: Progress | None) -> list[ByHand | None]:
    say = or_silent(progress)
    found: list[ByHand | None] = []
    for done, seed in enumerate(seeds, start=1):
        facts = draw_facts(seed)
        made = construct(facts, seed, recipe.arrangements)
        found.append(None if made is None else ByHand(made.owned, heads_alone(Ensemble([made.network], [facts]))[0]))
        say("setting parameters by hand", done, len(seeds))
    return found
