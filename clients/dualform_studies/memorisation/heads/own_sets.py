"""Heads trained to remember a set of pairs of their own. Shapes: M networks, H heads, P pairs.

Each network's pairs are dealt to its heads, in sets as equal as can be. The loss asks for both things at once: all
heads together answer all pairs, and each head alone answers its own.

    loss = sum_p ( -log p(next | p, all heads) - log p(next | p, the head that p was dealt to, alone) ) / P

It does not ask a head to be wrong about the pairs of others. Whether a network succeeded is judged by what its heads
know alone, as that of a freely trained network is (`Alone.has_own_sets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.heads.overlap import Alone, heads_alone
from dualform_studies.memorisation.transformer.ensemble import ensemble_of
from dualform_studies.memorisation.transformer.facts import TOKENS
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.progress import Progress, counting

PAIRS = len(TOKENS) ** 2


@dataclass(frozen=True, eq=False)
class OwnSets:
    """What became of the networks of one number of heads."""

    heads: int
    owned: NDArray[np.bool_]
    """bool[M, H, P]: the pairs dealt to each head."""
    networks: Sequence[Alone]
    """What their heads know alone."""

    @property
    def own(self) -> NDArray[np.float64]:
        """float64[M]: the fraction of the pairs that are known by their own head alone."""
        known = np.stack([one.known for one in self.networks])
        return np.asarray((self.owned & known).sum(axis=(1, 2)) / self.owned.sum(axis=(1, 2)))

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """bool[M]."""
        return np.array([one.has_own_sets for one in self.networks])


def deal(seed: int, heads: int) -> NDArray[np.bool_]:
    """bool[H, P]: all pairs, dealt to heads at random from a seed."""
    order = np.random.default_rng(seed).permutation(PAIRS)
    owner = np.empty(PAIRS, dtype=np.int64)
    owner[order] = np.arange(PAIRS) % heads
    return np.asarray(owner == np.arange(heads)[:, None])


def train_own_sets(recipe: Recipe, seeds: Sequence[int], heads: int, progress: Progress | None = None) -> OwnSets:
    """Train a network of each seed with so many heads, by Adam: the question is what they can hold."""
    owned = np.stack([deal(seed, heads) for seed in seeds])
    weightings = torch.cat([torch.ones(1, heads), torch.eye(heads)])
    counted = torch.cat([torch.ones(len(seeds), 1, PAIRS), torch.from_numpy(owned).float()], dim=1)
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(
        recipe.own_steps,
        recipe.adam,
        counted=counted,
        heads=weightings,
        say=counting(progress, f"sets of their own for {heads} heads", recipe.own_steps),
    )
    return OwnSets(heads, owned, heads_alone(ensemble))
