"""What heads know alone, and how that overlaps. Shapes: M networks, H heads, P pairs.

Were heads a meaningful basis, each alone would know pairs of its own, and together these would be all pairs. Sets of
the same sizes drawn independently of each other overlap, too: of two with a and b of P pairs, a b / P are expected in
both, and P (1 - (1 - a / P) (1 - b / P) ...) in any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Alone:
    """One network's heads, each at the strength it was trained with while the others are silent."""

    known: NDArray[np.bool_]
    """bool[H, P]: the pairs that a head knows alone."""
    without: NDArray[np.bool_]
    """bool[P]: the pairs that are known with no head, by the last token's own stream."""
    together: NDArray[np.bool_]
    """bool[P]: the pairs that the whole network knows."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64[H]: how many pairs each head knows."""
        return np.asarray(self.known.sum(axis=1))

    @property
    def union(self) -> NDArray[np.bool_]:
        """bool[P]: the pairs that any head knows alone."""
        return np.asarray(self.known.any(axis=0))

    @property
    def is_disjoint(self) -> bool:
        return bool((self.known.sum(axis=0) <= 1).all())

    @property
    def is_partition(self) -> bool:
        """Whether each pair is known by one head alone and no other: then the heads' accuracies sum to 1."""
        return bool((self.known.sum(axis=0) == 1).all())

    def shared(self, *heads: int) -> NDArray[np.bool_]:
        """bool[P]: the pairs that each of these heads knows alone."""
        return np.asarray(self.known[list(heads)].all(axis=0))

    def shared_by_chance(self, *heads: int) -> float:
        """How many they would share, were sets of their sizes drawn independently."""
        pairs = self.known.shape[1]
        return float(pairs * np.prod(self.sizes[list(heads)] / pairs))

    @property
    def union_by_chance(self) -> float:
        pairs = self.known.shape[1]
        return float(pairs * (1 - np.prod(1 - self.sizes / pairs)))

    def groups(self) -> Iterator[tuple[int, ...]]:
        """Two heads and more, as (0, 1), (0, 2), …"""
        for size in range(2, len(self.known) + 1):
            yield from combinations(range(len(self.known)), size)


def heads_alone(ensemble: Ensemble) -> list[Alone]:
    """Of each network of an ensemble."""
    heads = ensemble.heads
    right = ensemble.right(torch.cat([torch.eye(heads), torch.zeros(1, heads), torch.ones(1, heads)]))
    return [Alone(each[:heads], each[heads], each[heads + 1]) for each in right]


@dataclass(frozen=True)
class Overlaps:
    """Means over many networks, in pairs."""

    networks: int
    sizes: float
    """Sum of what the heads know alone."""
    union: float
    union_by_chance: float
    shared: float
    """By two heads, mean over all twos."""
    shared_by_chance: float
    disjoint: int
    """Networks whose heads share no pair."""
    partitions: int
    """Networks whose heads share no pair and leave none."""

    @staticmethod
    def of(networks: Sequence[Alone]) -> Overlaps:
        twos = [(one, two) for one in networks for two in combinations(range(len(one.known)), 2)]
        return Overlaps(
            len(networks),
            _mean([one.sizes.sum() for one in networks]),
            _mean([one.union.sum() for one in networks]),
            _mean([one.union_by_chance for one in networks]),
            _mean([one.shared(*two).sum() for one, two in twos]),
            _mean([one.shared_by_chance(*two) for one, two in twos]),
            sum(one.is_disjoint for one in networks),
            sum(one.is_partition for one in networks),
        )


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0
