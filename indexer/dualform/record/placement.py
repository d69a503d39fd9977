"""Whether the processes of a training gave each layer's slots the same space, and its batch the same axis.

Each chooses by its own first batch, and where they chose apart, the slots of one would be those of another space.

Shapes: T layers.
"""

from __future__ import annotations

import zlib

import numpy as np

from dualform.errors import RecordingError
from dualform.record.projection import Doubles
from dualform.record.spaces import Spaces

_CODES = 1 << 20
"""So few that the sum of squares over thousands of processes is a whole number in float64."""


class Placement:
    """Where one process has the slots of its layers."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces

    @property
    def numbers(self) -> Doubles:
        """float64[3 T], to be added up: of each layer that has slots 1, a code of its place, and the code's square."""
        codes = [self._code(layer) for layer in self._spaces.all_layers]
        seen = [(0, 0, 0) if code is None else (1, code, code * code) for code in codes]
        return np.array(seen, dtype=np.float64).reshape(-1)

    def _code(self, layer: str) -> int | None:
        """Of space and axis; None for a layer without slots."""
        if layer not in self._spaces.layers:
            return None
        place = f"{self._spaces.layers[layer]}/{self._spaces.axis_of(layer)}"
        return zlib.crc32(place.encode()) % _CODES

    def check(self, total: Doubles) -> None:
        """`total` float64[3 T]: the sum of `numbers` over all processes.

        Raises RecordingError for a layer that several processes have in different places: on each of them alike.
        """
        for layer, numbers in zip(self._spaces.all_layers, total.reshape(-1, 3).tolist(), strict=True):
            count, codes, squares = map(int, numbers)
            if count * squares != codes * codes:
                raise RecordingError(
                    f"layer {layer!r} is in another space on one rank than on another, or has its batch in another "
                    f"axis{self._here(layer)}.",
                    hint=f"Say on every rank where it is: spaces={{{layer!r}: …}}, and batch_dim= in recorder.step.",
                    field="spaces",
                )

    def _here(self, layer: str) -> str:
        if layer not in self._spaces.layers:
            return ""
        space, axis = self._spaces.layers[layer], self._spaces.axis_of(layer)
        return f"; on this rank it is in {space!r}, with the batch in axis {axis}"
