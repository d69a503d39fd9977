"""Where maps of the torus have their edges, and whether those of two maps lie together. Shapes: G points a side.

All opposite sides are joined, so every difference and every distance goes around.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STRONGEST = 0.1
"""The share of a map's points that count as its edges: those at which it changes fastest."""
REACH = 10.0
"""Degrees within which an edge lies at another."""


def borders(regions: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[G, G]: points with another region to the right or above."""
    return np.asarray((regions != np.roll(regions, -1, axis=0)) | (regions != np.roll(regions, -1, axis=1)))


def border_length(regions: NDArray[np.int64] | NDArray[np.bool_]) -> int:
    """Sides between points of different regions, in sides of a point."""
    return sum(int((regions != np.roll(regions, -1, axis=axis)).sum()) for axis in (0, 1))


def steepness(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G, G]: how fast a map of vectors, float64[G, G, d], changes at each point, per point of the grid."""
    changes = [np.roll(vectors, -1, axis=axis) - np.roll(vectors, 1, axis=axis) for axis in (0, 1)]
    return np.asarray(np.sqrt(sum((change**2).sum(axis=-1) for change in changes)) / 2)


def strongest(heights: NDArray[np.float64], share: float = STRONGEST) -> NDArray[np.bool_]:
    """bool[G, G]: the greatest of the map, so large a share of its points."""
    return np.asarray(heights > np.quantile(heights, 1 - share))


def within(points: NDArray[np.bool_], degrees: float = REACH) -> NDArray[np.bool_]:
    """bool[G, G]: what lies no farther than so many degrees from some of the points, straight across the square."""
    side = len(points)
    reach = degrees * side / 360
    steps = range(-int(reach), int(reach) + 1)
    near = np.zeros_like(points)
    for up in steps:
        for across in steps:
            if up**2 + across**2 <= reach**2:
                near |= np.roll(points, (up, across), axis=(0, 1))
    return near


def beyond_chance(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float:
    """How much more often edges lie in `near` than points drawn at random: 0 for as often, 1 for all of them.

    0 also where there are no edges, or nothing else than `near`.
    """
    chance = float(near.mean())
    return (float(near[edges].mean()) - chance) / (1 - chance) if edges.any() and chance < 1 else 0.0
