"""The torus as the surface that a map of it into three dimensions makes, and a parallel projection to draw it with.

Shapes: G points a side. Quads and lines are cut small, to be drawn from the farthest to the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Normalised:
    """A surface in axes of its own: its principal axes, each divided by its greatest number.

    Heads write along one direction almost alone, so that a surface in the stream's own axes is seen as a line.
    """

    points: NDArray[np.float64]
    """float64[G, G, 3], from -1 to 1 and about the surface's mean."""
    axes: NDArray[np.float64]
    """float64[3, 3]: in the rows the principal axes, of length 1 in the stream, the widest first."""
    reach: NDArray[np.float64]
    """float64[3]: the greatest number along each axis, to either side of the mean."""
    mean: NDArray[np.float64]
    """float64[3]: the surface's mean in the stream."""

    @classmethod
    def of(cls, vectors: NDArray[np.float64]) -> Normalised:
        """Of a map float64[G, G, 3]."""
        mean = vectors.mean(axis=(0, 1))
        axes = np.linalg.svd((vectors - mean).reshape(-1, 3), full_matrices=False)[2]
        along = (vectors - mean) @ axes.T
        reach = np.abs(along).max(axis=(0, 1))
        reach = np.where(reach > 1e-12 * max(1.0, float(reach.max())), reach, 1.0)
        return cls(along / reach, axes, reach, mean)

    def place(self, streams: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3]: where streams lie in these axes."""
        return np.asarray((streams - self.mean) @ self.axes.T / self.reach)

    def directions(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[N, 3], of length 1: where the logits u . x of rows u, float64[N, 3], grow fastest in these axes."""
        grown = rows @ self.axes.T * self.reach
        return np.asarray(grown / np.linalg.norm(grown, axis=1, keepdims=True))


@dataclass(frozen=True)
class View:
    """From where a figure is looked at: turned about the third axis, then tilted towards it, in degrees."""

    turn: float = -55.0
    tilt: float = 25.0

    def of(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3]: to the right, up, and towards the eye."""
        turn, tilt = np.radians(self.turn), np.radians(self.tilt)
        right = np.array([-np.sin(turn), np.cos(turn), 0])
        eye = np.array([np.cos(tilt) * np.cos(turn), np.cos(tilt) * np.sin(turn), np.sin(tilt)])
        return np.asarray(points @ np.stack([right, np.cross(eye, right), eye], axis=1))


def quads(surface: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G * G, 4, 3]: between each point and its neighbours to the right and above, around the torus."""
    right, above = np.roll(surface, -1, axis=1), np.roll(surface, -1, axis=0)
    corners = np.stack([surface, right, np.roll(right, -1, axis=0), above], axis=2)
    return corners.reshape(-1, 4, 3)


def ribbons(seen: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """float64[n, 4, 3]: a line through n + 1 points as `View.of` has them, in flat pieces so wide that face the eye."""
    along = np.diff(seen[:, :2], axis=0)
    lengths = np.linalg.norm(along, axis=1, keepdims=True)
    across = np.stack([-along[:, 1], along[:, 0], np.zeros(len(along))], axis=1) / np.where(lengths > 0, lengths, 1)
    half = across * width / 2
    return np.stack([seen[:-1] - half, seen[1:] - half, seen[1:] + half, seen[:-1] + half], axis=1)


def angle_colours(first: NDArray[np.float64], second: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """float64[..., 3]: red grows with the first angle, blue with the second, in so many steps each.

    Angles are in radians, from 0 up to 2 pi.
    """
    red, blue = (np.floor(angle * steps / (2 * np.pi)) / (steps - 1) for angle in (first, second))
    return np.stack([red, np.zeros_like(red), blue], axis=-1)
