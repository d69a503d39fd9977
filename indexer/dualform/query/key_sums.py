"""The sum of the keys of each group: what a signed sum needs of the memory, whatever the number of slots.

Shapes: T slots, G groups, d dimensions, b slots of a block.

Keys are added in float64, in slot order within fixed blocks and then block by block, so that the sums have the same
bits however they are asked for. The signs of the keys are learned in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.runs import added_in_order, begins
from dualform.query.view import Check
from dualform.store.rows import Keys

BLOCK = 4096
"""Slots that are added together before they join the sum: fixed, for it decides the last bits."""


@dataclass(frozen=True, eq=False)
class KeySums:
    sums: NDArray[np.float64]
    """float64[G, d]."""
    one_sign: NDArray[np.bool_]
    """bool[G]: no two numbers of the group's keys have opposite signs; zero, and -0.0, goes with either."""
    finite: bool
    """Whether every key of these groups is: no sum of finite float32 leaves float64."""

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.one_sign.nbytes


def key_sums(keys: Keys, groups: Groups, check: Check) -> KeySums:
    sums = np.zeros((len(groups.counts), keys.width))
    least, most = np.zeros((2, len(sums)), dtype=np.float32)
    for start in range(0, keys.slots, BLOCK):
        low, high = np.searchsorted(groups.slots, [start, start + BLOCK])
        slots, numbers = groups.slots[low:high], groups.numbers[low:high]
        if not len(slots):
            continue
        check()
        order = np.argsort(numbers, kind="stable")
        runs = begins(numbers[order])
        own = numbers[order][runs]
        rows = _rows(keys, slots[order], start)
        least[own] = np.minimum(least[own], np.minimum.reduceat(rows.min(axis=1, initial=0), runs))
        most[own] = np.maximum(most[own], np.maximum.reduceat(rows.max(axis=1, initial=0), runs))
        sums[own] += added_in_order(rows.astype(np.float64), runs)
    return KeySums(sums, (least >= 0) | (most <= 0), bool(np.isfinite(sums).all()))


def _rows(keys: Keys, slots: NDArray[np.int64], start: int) -> NDArray[np.float32]:
    """The keys of some slots of one block, in the order given."""
    if keys.row_of_slot is not None:
        return keys.of_slots(slots)
    return keys.block(start, min(start + BLOCK, keys.slots))[slots - start]
