"""The slots of a layer that still move the weights: keys, error signals and groups.

Shapes: m slots, d_in and d_out of the layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.store.layer import Layer

_READ_AROUND = 4 << 20
"""Numbers of keys and error signals that are read before and behind those that are asked for."""


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
    """Of one layer, asked for step by step; holds what was read last."""

    def __init__(self, view: View, layer: Layer, groups: NDArray[np.int64]) -> None:
        """`groups`: int64[H], the group of each entry."""
        self._keys, self._values = view.snapshot.keys(layer.name), view.snapshot.values(layer.name)
        self._steps, self._groups = view.slot_steps(layer), groups
        self._around = _READ_AROUND // (layer.d_in + layer.d_out)
        self._start = self._stop = 0
        self._read = self._rows(0, 0)

    def between(self, first_step: int, last_step: int) -> SlotRows:
        """Those of some steps, both included; there may be none."""
        start, stop = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        if start < self._start or stop > self._stop:
            # Blocks of one layer ask for steps in turn, some for earlier ones than others.
            self._start, self._stop = max(start - self._around, 0), min(stop + self._around, len(self._steps))
            self._read = self._rows(self._start, self._stop)
        own, read = slice(start - self._start, stop - self._start), self._read
        return SlotRows(read.keys[own], read.errors[own], read.steps[own], read.groups[own])

    def _rows(self, start: int, stop: int) -> SlotRows:
        return SlotRows(
            self._keys.entry_block(start, stop),
            self._values.block(start, stop),
            self._steps[start:stop],
            self._groups[start:stop],
        )
