"""Exact tests of small counts, each one-sided."""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray


def sign_test(differences: NDArray[np.float64]) -> float:
    """How likely so many of the differences, float64[M], would be above 0, were either sign as likely as the other.

    Differences of 0 are left out; 1 is returned where there is no other.
    """
    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    count = above + below
    return float(sum(comb(count, wins) for wins in range(above, count + 1)) / 2**count)


def can_reach(level: float, count: int) -> bool:
    """Whether the sign test of so many differences could come to p = `level`, were all of them above 0."""
    return 0.5**count <= level


def more_often(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """How likely `first`, bool[m], would be true so much more often than `second`, bool[n], were the true ones dealt
    to both at random (Fisher's exact test)."""
    true, drawn, both = int(first.sum() + second.sum()), len(first), len(first) + len(second)
    ways = [comb(drawn, own) * comb(both - drawn, true - own) for own in range(min(true, drawn) + 1)]
    return float(sum(ways[int(first.sum()) :]) / comb(both, true))
