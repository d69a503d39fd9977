"""The entries of a layer: the slots of its space that it has, numbered from 0 in slot order.

Shapes: H entries, n that are asked for.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]


class Entries:
    """Ranges of slots, ascending."""

    def __init__(self, first_slot: Integers, slots: Integers, of_space: int) -> None:
        """int64[r] each: where a range begins, and how many slots it has. `of_space`: all slots of the space."""
        self._first_slot, self._lengths = first_slot, slots
        self._first_entry = np.cumsum(slots) - slots
        self.count = int(slots.sum())
        """H."""
        self.all = self.count == of_space
        """Whether the layer has every slot of its space, so that entries are slots."""

    @cached_property
    def slots(self) -> Integers | None:
        """int64[H]; None where entries are slots."""
        if self.all:
            return None
        return np.repeat(self._first_slot - self._first_entry, self._lengths) + np.arange(self.count)

    def slots_of(self, entries: Integers) -> Integers:
        """int64[n]."""
        if self.all:
            return entries
        place = np.searchsorted(self._first_entry, entries, side="right") - 1
        return np.asarray(self._first_slot[place] + entries - self._first_entry[place])

    def of(self, slots: Integers) -> Integers:
        """int64[n]: the entry of each slot; -1 for a slot that the layer does not have."""
        if self.all:
            return slots
        if not len(self._first_slot):
            return np.full(len(slots), -1)
        place = np.maximum(np.searchsorted(self._first_slot, slots, side="right") - 1, 0)
        within = slots - self._first_slot[place]
        return np.where((within >= 0) & (within < self._lengths[place]), self._first_entry[place] + within, -1)
