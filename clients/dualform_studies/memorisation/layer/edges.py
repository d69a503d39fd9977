"""Where maps of the torus have their edges, and whether those of two maps lie together. Shapes: G points a side.

All opposite sides are joined, so every difference and every distance goes around.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STRONGEST = 0.1
"""The share of a map's points that are its steepest: those at which it changes fastest."""
REACH = 10.0
"""Degrees within which an edge lies at another."""
_ACROSS = ((1, 0), (1, 1), (0, 1), (1, -1))
"""Steps up and to the right, in directions of 0, 45, 90 and 135 degrees from upwards."""


def borders(regions: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[G, G]: points with another region to the right or above."""
    return np.asarray((regions != np.roll(regions, -1, axis=0)) | (regions != np.roll(regions, -1, axis=1)))


def border_length(regions: NDArray[np.int64] | NDArray[np.bool_]) -> int:
    """Sides between points of different regions, in sides of a point."""
    return sum(int((regions != np.roll(regions, -1, axis=axis)).sum()) for axis in (0, 1))


def steepness(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G, G]: how fast a map of vectors, float64[G, G, d], changes at each point, per point of the grid."""
    return np.asarray(np.sqrt(sum((change**2).sum(axis=-1) for change in _changes(vectors))))


def ridges(vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[G, G]: the edges of a map, float64[G, G, d]: where it is steeper than on either side, in the direction in
    which it changes fastest, and however steep it is elsewhere.

    So a faint edge counts as a strong one does. Source: Canny 1986, "A computational approach to edge detection"
    (suppression of what is no maximum), without his thresholds.
    """
    up, right = _changes(vectors)
    # The direction of fastest change is the first eigenvector of the sum over dimensions of gradient times gradient.
    angle = np.arctan2(2 * (up * right).sum(axis=-1), (up**2).sum(axis=-1) - (right**2).sum(axis=-1)) / 2
    steep, direction = steepness(vectors), np.rint(angle / (np.pi / 4)).astype(np.int64) % len(_ACROSS)
    found = np.zeros(steep.shape, dtype=np.bool_)
    for at, (above, beside) in enumerate(_ACROSS):
        ahead, behind = (np.roll(steep, (sign * above, sign * beside), axis=(0, 1)) for sign in (-1, 1))
        found |= (direction == at) & (steep >= ahead) & (steep > behind)
    return found


def _changes(vectors: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """float64[G, G, d], twice: how fast a map changes upwards and to the right, per point of the grid."""
    return [(np.roll(vectors, -1, axis=axis) - np.roll(vectors, 1, axis=axis)) / 2 for axis in (0, 1)]


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


def beyond_chance(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """How much more often edges lie in `near` than points drawn at random: 0 for as often, 1 for all of them.

    None where there are no edges, or `near` is nothing or everything.
    """
    chance = float(near.mean())
    return (float(near[edges].mean()) - chance) / (1 - chance) if edges.any() and 0 < chance < 1 else None


def shifted_as_near(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """The share of all shifts of `near` around the torus after which as many of the edges lie in it, or more.

    None where there are no edges, or `near` is nothing or everything.
    """
    if not edges.any() or not near.any() or near.all():
        return None
    overlaps = np.fft.irfft2(np.fft.rfft2(edges) * np.fft.rfft2(near).conj(), s=edges.shape)
    # Counts of points, but for rounding.
    return float((overlaps > (edges & near).sum() - 0.5).mean())
