"""Keys and error signals of a layer's slots, read once for all that a walk does with them.

Shapes: m slots, d_in and d_out of the layer.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
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


class _Window(NamedTuple):
    """A range of a layer's entries."""

    start: int
    stop: int
    keys: NDArray[np.float32]
    errors: NDArray[np.float32]

    def has(self, start: int, stop: int) -> bool:
        return self.start <= start and stop <= self.stop


class SlotWindow:
    """Of one layer, asked for step by step; holds what was read last, while what follows is read. It has the rows by
    entry, as Keys and Rows do.
    """

    def __init__(self, view: View, layer: Layer, groups: NDArray[np.int64], reader: Executor) -> None:
        """`groups`: int64[H], the group of each entry. `reader`: reads while the walk computes."""
        keys = view.snapshot.keys(layer.name)
        # What is gone through once is not held. Rows that several slots share come back, in any order.
        self._keys: Keys = keys.passing() if keys.order is None else keys
        self._values: Rows = view.snapshot.values(layer.name).passing()
        self._steps, self._groups = view.slot_steps(layer), groups
        self._ahead = _READ_AHEAD // (layer.d_in + layer.d_out)
        self._reader = reader
        self._held = self._read(0, 0)
        self._following: Future[_Window] | None = None

    def between(self, first_step: int, last_step: int) -> SlotRows:
        """Those of some steps, both included; there may be none."""
        start, stop = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        return SlotRows(
            self.entry_block(start, stop), self.block(start, stop), self._steps[start:stop], self._groups[start:stop]
        )

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_in]: the keys of some entries."""
        held = self._holding(start, stop)
        return held.keys[start - held.start : stop - held.start]

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_out]: their error signals."""
        held = self._holding(start, stop)
        return held.errors[start - held.start : stop - held.start]

    def _holding(self, start: int, stop: int) -> _Window:
        if self._held.has(start, stop):
            return self._held
        following = None if self._following is None else self._following.result()
        # Blocks of one layer ask for steps in turn, some for earlier ones than others.
        before = self._ahead // 4
        if following is None or not following.has(start, stop):
            following = self._read(start - before, stop + self._ahead)
        self._held, self._following = following, None
        if (end := following.stop) < len(self._steps):
            self._following = self._reader.submit(self._read, end - before - (stop - start), end + self._ahead)
        return following

    def _read(self, start: int, stop: int) -> _Window:
        """A range of entries, or what there is of it."""
        start, stop = max(start, 0), min(stop, len(self._steps))
        return _Window(start, stop, self._keys.entry_block(start, stop), self._values.block(start, stop))
