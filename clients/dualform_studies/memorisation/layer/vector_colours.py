"""Colours of 3-D vectors that add as the vectors do. Shapes: a map is float64[..., 3].

    (red, green, blue) = 1/2 + v / (2 R)                        R one number for each dimension

Zero is a middle grey, and what a colour is apart from that grey is linear in the vector: the colours of two maps, each
less the grey, are those of the maps' sum. R holds the greatest numbers of any map in a figure: nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

_GREY = 0.5
_PARTS = ("red", "green", "blue")


@dataclass(frozen=True, eq=False)
class VectorColours:
    """One scale for all maps of a figure."""

    reach: NDArray[np.float64]
    """float64[3]: R, the numbers at which red, green and blue are full."""

    @classmethod
    def over(cls, *maps: NDArray[np.float64]) -> VectorColours:
        """The scale that shows all of these maps without clipping."""
        greatest = np.max([np.abs(one).reshape(-1, len(_PARTS)).max(axis=0) for one in maps], axis=0)
        return cls(np.where(greatest > 0, greatest, 1.0))

    def of(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3] from 0 to 1: red, green and blue."""
        return np.asarray(_GREY + vectors / (2 * self.reach))

    def draw_key(self, panels: Sequence[Axes]) -> None:
        """In three axes: what each dimension of the stream does to the colour, the others being zero."""
        for dimension, (panel, part, reach) in enumerate(zip(panels, _PARTS, self.reach.tolist(), strict=True)):
            ramp = np.linspace(-reach, reach, 33)[None, :, None] * np.eye(len(_PARTS))[dimension]
            panel.imshow(self.of(ramp), aspect="auto", extent=(-reach, reach, 0, 1), interpolation="nearest")
            panel.set_yticks([])
            panel.set_xticks([-reach, 0, reach], [f"{-reach:.1f}", "0", f"{reach:.1f}"])
            panel.set_xlabel(f"stream dimension {dimension + 1}: {part}")
