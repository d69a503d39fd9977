"""Exact tests of small counts: how likely chance alone would have made them differ so."""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.01
"""Below it, a difference is none of chance."""


def sign_test(differences: NDArray[np.float64]) -> float:
    """How likely so many of the differences, float64[M], would be above 0, were either sign as likely: one-sided.

    Differences of 0 are left out; 1 is returned where there is no other.
    """
    return _tail(int((differences < 0).sum()), int((differences != 0).sum()))


def can_reach(level: float, count: int) -> bool:
    """Whether the sign test of so many differences could come to p = `level`, were all of them above 0."""
    return 0.5**count <= level


def mcnemar(gained: int, lost: int) -> float:
    """How likely two classifiers that err alike would differ on so many images, or more unevenly: two-sided.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions".
    """
    return min(1.0, 2 * _tail(min(gained, lost), gained + lost))


def is_gain(gained: int, lost: int, tried: int = 1) -> bool:
    """Whether more images are gained than lost, beyond chance, also where the best of so many that were tried is."""
    return gained > lost and mcnemar(gained, lost) < CHANCE / tried


def more_often(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """How likely `first`, bool[m], would be true so much more often than `second`, bool[n], were the true ones dealt
    to both at random: Fisher's exact test, one-sided."""
    true, drawn, both = int(first.sum() + second.sum()), len(first), len(first) + len(second)
    ways = [comb(drawn, own) * comb(both - drawn, true - own) for own in range(min(true, drawn) + 1)]
    return float(sum(ways[int(first.sum()) :]) / comb(both, true))


def _tail(at_most: int, count: int) -> float:
    """How likely a fair coin shows heads so often, or less often, in `count` throws."""
    ways, way = 0, 1
    for heads in range(at_most + 1):
        ways += way
        way = way * (count - heads) // (heads + 1)
    return float(ways / 2**count)
