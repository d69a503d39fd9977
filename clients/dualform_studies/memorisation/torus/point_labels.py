"""Places beside points for their names, such that names neither cover each other nor a point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_DIRECTIONS = 16
_DISTANCES = (1.0, 1.5, 2.2, 3.0)
"""Of a name's centre from its point, in what a name beside its point needs."""


def place_names(
    points: NDArray[np.float64], size: tuple[float, float], radius: float, taken: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[n, 2]: by how much each name's centre is moved from its point.

    `points` float64[n, 2], the `size` of a name (width, height) and the `radius` of a point are in one unit, as are the
    `taken` places, float64[m, 2], of the same radius. Greedy: each name takes the nearest of the
    places that cover least.
    """
    half = np.array(size) / 2
    angles = np.arange(_DIRECTIONS) * (2 * np.pi / _DIRECTIONS)
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1) * (half + radius)
    candidates = np.concatenate([distance * around for distance in _DISTANCES])
    discs = np.concatenate([points, taken])
    boxes: list[NDArray[np.float64]] = []
    moved = []
    for point in points:
        costs = [
            sum(_overlap(point + move - box, 2 * half) for box in boxes)
            + sum(_overlap(point + move - disc, half + radius) for disc in discs)
            for move in candidates
        ]
        # The first of equals is the nearest.
        moved.append(candidates[int(np.argmin(np.round(costs, 6)))])
        boxes.append(point + moved[-1])
    return np.array(moved)


def _overlap(apart: NDArray[np.float64], reach: NDArray[np.float64]) -> float:
    """The area that two boxes share whose centres are so far apart, and whose half sizes add up to `reach`."""
    return float(np.prod(np.clip(reach - np.abs(apart), 0, None)))
