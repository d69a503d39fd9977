"""Ways round in the parameters of attention patterns, for their level lines to move along."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.pattern.polynomial import OneDimensional


@dataclass(frozen=True, eq=False)
class Circle:
    """A circle in a space of n dimensions."""

    centre: NDArray[np.float64]
    """float64[n]."""
    targets: NDArray[np.float64]
    """float64[2, n]: from the centre to the points at 0 and at 90 degrees."""

    @classmethod
    def through(cls, points: NDArray[np.float64]) -> Circle:
        """The circle through three points, float64[3, n], not on one line; it begins at the first."""
        start, *others = points
        sides = np.stack([other - start for other in others])
        # The centre lies in the plane of the points, as far from the first as from each of the others.
        shares = np.linalg.solve(2 * sides @ sides.T, (sides**2).sum(axis=1))
        centre = start + shares @ sides
        begins = start - centre
        across = sides[0] - begins * (sides[0] @ begins) / (begins @ begins)
        return cls(centre, np.stack([begins, across * np.linalg.norm(begins) / np.linalg.norm(across)]))

    def at(self, angle: float) -> NDArray[np.float64]:
        """float64[n]: the point at an angle in radians."""
        return np.asarray(self.centre + np.array([np.cos(angle), np.sin(angle)]) @ self.targets)

    def angle_of(self, point: NDArray[np.float64]) -> float:
        """The angle in radians, from 0 up to 2 pi, of a point of the circle."""
        across, up = self.targets @ (point - self.centre)
        return float(np.arctan2(up, across) % (2 * np.pi))


def through_heads(coefficients: NDArray[np.float64]) -> Circle:
    """The circle through the patterns of three heads, float64[3, 11], each brought to length 1.

    A length moves no level line. Ties between coefficients are linear, so they hold all the way round.
    """
    return Circle.through(coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True))


def one_dimensional(angle: float) -> OneDimensional:
    """A head of dimension 1 on its way round: its query's phase turns once, and both offsets swing."""
    swing = float(np.sin(angle))
    return OneDimensional(1.0, angle, 0.7 * float(np.cos(angle)), 0.0, 0.6 + 0.9 * swing)
