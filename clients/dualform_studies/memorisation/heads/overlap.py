"""What heads know alone, and how that overlaps. Shapes: M networks, H heads, P pairs.

Were heads a meaningful basis, each alone would know pairs of its own, and together these would be all pairs. Sets of
the same sizes drawn independently of each other overlap, too: of two with a and b of P pairs, a b / P are expected in
both, and P (1 - (1 - a / P) (1 - b / P) ...) in any. What is known without any head, most heads know alone, too, and
would be seen as an overlap of theirs: whether heads part the work is asked of the other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.transformer.ensemble import Ensemble


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
    def outside(self) -> Alone:
        """The same of the pairs alone that are not known without any head."""
        kept = ~self.without
        return Alone(self.known[:, kept], self.without[kept], self.together[kept])

    @property
    def has_own_sets(self) -> bool:
        """Whether every head knows a set of its own, so that all heads together know all pairs: the pairs can be
        dealt to heads that know them alone, to none more than to H heads as equally as can be."""
        return bool(self.together.all()) and _can_be_dealt(self.known)

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
        return float(pairs * np.prod(self.sizes[list(heads)] / pairs)) if pairs else 0.0

    @property
    def fewer_than_chance(self) -> float:
        """By how many pairs two heads share less than by chance, mean over all twos."""
        return _mean([self.shared_by_chance(*two) - self.shared(*two).sum() for two in _twos(self)])

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
    own_sets: int
    """Networks whose every head knows a set of its own."""

    @staticmethod
    def of(networks: Sequence[Alone]) -> Overlaps:
        twos = [(one, two) for one in networks for two in _twos(one)]
        return Overlaps(
            len(networks),
            _mean([one.sizes.sum() for one in networks]),
            _mean([one.union.sum() for one in networks]),
            _mean([one.union_by_chance for one in networks]),
            _mean([one.shared(*two).sum() for one, two in twos]),
            _mean([one.shared_by_chance(*two) for one, two in twos]),
            sum(one.is_disjoint for one in networks),
            sum(one.is_partition for one in networks),
            sum(one.has_own_sets for one in networks),
        )


def fewer_than_chance(networks: Sequence[Alone]) -> NDArray[np.float64]:
    """float64[M]: by how many pairs two heads share less than by chance, of those that no head is needed for."""
    return np.array([one.outside.fewer_than_chance for one in networks])


def _can_be_dealt(known: NDArray[np.bool_]) -> bool:
    """Whether every pair can be given to a head that knows it, bool[H, P], and no head more than ceil(P / H) of them.

    One pair after the other; where all heads that know it have their fill, pairs change hands (Kuhn 1955, "The
    Hungarian method for the assignment problem").
    """
    heads, pairs = known.shape
    dealt: list[list[int]] = [[] for _ in range(heads)]

    def deal(pair: int, asked: set[int]) -> bool:
        for head in np.flatnonzero(known[:, pair]).tolist():
            if head in asked:
                continue
            asked.add(head)
            if len(dealt[head]) < -(-pairs // heads):
                dealt[head].append(pair)
                return True
            for at, other in enumerate(dealt[head]):
                if deal(other, asked):
                    dealt[head][at] = pair
                    return True
        return False

    return all(deal(pair, set()) for pair in range(pairs))


def _twos(one: Alone) -> Iterator[tuple[int, int]]:
    return combinations(range(len(one.known)), 2)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0
