"""The gradient of a block that the slots of a range of steps make: as a whole, and of those that a mask leaves.

Shapes: d_out and columns of a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from dualform.query.view import Check, View
from dualform.query.weights.slot_sum import block_size
from dualform.query.where.mask import Selection
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

Holder: TypeAlias = tuple[Layer, Parameter, Selection]
"""A layer that holds a block, the block's place in it, and the slots of it that stay."""


class SlotGradients:
    """Of one block, as it is stored: the sum of the terms of every layer that holds it."""

    def __init__(self, view: View, holders: Sequence[Holder], shape: tuple[int, ...]) -> None:
        """`shape`: of the block."""
        self._shape = shape
        self._terms = [_Terms(view, *holder) for holder in holders]
        self.all_stay = all(bool(selection.stays.all()) for _, _, selection in holders)
        """Whether the mask leaves every slot."""

    def of(self, first_step: int, last_step: int, check: Check) -> tuple[Doubles, Doubles]:
        """Both of the block's shape, float64: what the slots of the steps made, both ends included, and what those
        that stay did. The same array where all stay.
        """
        whole = np.zeros(self._shape)
        kept = whole if self.all_stay else np.zeros(self._shape)
        for terms in self._terms:
            check()
            terms.add(first_step, last_step, whole, None if self.all_stay else kept)
        return whole, kept


class _Terms:
    """Of one layer."""

    def __init__(self, view: View, layer: Layer, place: Parameter, selection: Selection) -> None:
        self._steps, self._stays = view.slot_steps(layer), selection.stays
        self._values = view.snapshot.values(layer.name)
        self._keys = None if place in layer.biases else view.snapshot.keys(layer.name)
        self._columns, self._transposed = slice(place.start, place.stop), place.transposed
        self._size = block_size(max(layer.d_in, layer.d_out))

    def add(self, first_step: int, last_step: int, whole: Doubles, kept: Doubles | None) -> None:
        begin, end = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        for start in range(begin, end, self._size):
            stop = min(start + self._size, end)
            values = self._values.block(start, stop).astype(np.float64)
            keys = None
            if self._keys is not None:
                keys = self._keys.entry_block(start, stop)[:, self._columns].astype(np.float64)
            whole += self._product(values, keys)
            if kept is not None and (stays := self._stays[start:stop]).any():
                kept += self._product(values[stays], None if keys is None else keys[stays])

    def _product(self, values: Doubles, keys: Doubles | None) -> Doubles:
        """sum_t delta_t x_t^T, or sum_t delta_t where there are no keys."""
        if keys is None:
            summed: Doubles = values.sum(0)
        else:
            summed = keys.T @ values if self._transposed else values.T @ keys
        return summed
