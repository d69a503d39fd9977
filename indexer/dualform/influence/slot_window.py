"""Keys and error signals of a layer's slots, read once for all that a walk does with them.

Shapes: m slots, d_in and d_out of the layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.store.layer import Layer
from dualform.store.rows import Keys, Rows

_READ_AHEAD = 4 << 20
"""Numbers that are read behind those that are asked for, and a quarter of them before."""


class SlotRows(NamedTuple):
    keys: NDArray[np.float32]
    """float32[m, d_in]."""
    errors: NDArray[np.float32]
    """float32[m, d_out]: as they were recorded."""
    steps: NDArray[np.int64]
    """int64[m], ascending."""
    groups: NDArray[np.int64]
    """int64[m]."""


class SlotWindow:
    """Of one layer, asked for step by step; holds what was read last. It has the rows by entry, as Keys and Rows do."""

    def __init__(self, view: View, layer: Layer, groups: NDArray[np.int64]) -> None:
        """`groups`: int64[H], the group of each entry."""
        keys = view.snapshot.keys(layer.name)
        # What is gone through once is not held. Rows that several slots share come back, in any order.
        self._keys: Keys = keys.passing() if keys.order is None else keys
        self._values: Rows = view.snapshot.values(layer.name).passing()
        self._steps, self._groups = view.slot_steps(layer), groups
        self._ahead = _READ_AHEAD // (layer.d_in + layer.d_out)
        self._start = self._stop = 0
        self._held = self._keys.entry_block(0, 0), self._values.block(0, 0)

    def between(self, first_step: int, last_step: int) -> SlotRows:
        """Those of some steps, both included; there may be none."""
        start, stop = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        return SlotRows(
            self.entry_block(start, stop), self.block(start, stop), self._steps[start:stop], self._groups[start:stop]
        )

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_in]: the keys of some entries."""
        return self._read(start, stop)[0][start - self._start : stop - self._start]

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_out]: their error signals."""
        return self._read(start, stop)[1][start - self._start : stop - self._start]

    def _read(self, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if start < self._start or stop > self._stop:
            # Blocks of one layer ask for steps in turn, some for earlier ones than others.
            self._start, self._stop = max(start - self._ahead // 4, 0), min(stop + self._ahead, len(self._steps))
            self._held = (
                self._keys.entry_block(self._start, self._stop),
                self._values.block(self._start, self._stop),
            )
        return self._held
