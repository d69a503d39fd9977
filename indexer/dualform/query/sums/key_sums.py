"""The sum of the keys of each group: what a signed sum needs of the memory, whatever the number of slots.

Shapes: H entries of the layer, G groups, d dimensions, b entries of a block.

Keys are added in float64, in the order of the slots within fixed blocks and then block by block, so that the sums have
the same bits however they are asked for. The signs of the keys are learned in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.sums.runs import added_in_order, begins
from dualform.query.view import Check
from dualform.store.rows import Keys

BLOCK = 4096
"""Entries that are added together before they join the sum: fixed, for it decides the last bits."""
_COLUMNS = 8192
"""Of wide keys that are added together, as an embedding's are: float64 takes twice the bytes. No bit depends on it."""


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


class KeySummer:
    """Adds keys up, over one stretch of entries after another."""

    def __init__(self, groups: int, width: int, divisors: NDArray[np.float64] | None = None) -> None:
        """`divisors`: float64[R], of the stored rows, by which keys are divided before they are added; None for 1."""
        self._divisors = divisors
        self._sums = np.zeros((groups, width))
        self._least, self._most = np.zeros((2, groups), dtype=np.float32)

    def add(self, keys: Keys, entries: NDArray[np.int64], numbers: NDArray[np.int64], check: Check) -> None:
        """Add the keys of some entries, ascending, to the groups of those numbers, int64[m] each.

        Entries count from the first of `keys`, which must be the first of a block of the whole.
        """
        sums, least, most = self._sums, self._least, self._most
        for start in range(0, keys.entries, BLOCK):
            low, high = np.searchsorted(entries, [start, start + BLOCK])
            if low == high:
                continue
            check()
            order = np.argsort(numbers[low:high], kind="stable")
            ordered = numbers[low:high][order]
            runs = begins(ordered)
            own, chosen = ordered[runs], entries[low:high][order]
            rows = _rows(keys, chosen, start)
            divisors = None if self._divisors is None else self._divisors[_numbers(keys, chosen), None]
            least[own] = np.minimum(least[own], np.minimum.reduceat(rows.min(axis=1, initial=0), runs))
            most[own] = np.maximum(most[own], np.maximum.reduceat(rows.max(axis=1, initial=0), runs))
            for first in range(0, rows.shape[1], _COLUMNS):
                columns = slice(first, first + _COLUMNS)
                wide = rows[:, columns].astype(np.float64)
                if divisors is not None:
                    wide /= divisors
                sums[own, columns] += added_in_order(wide, runs)

    def sums(self) -> KeySums:
        """Of everything added so far."""
        one_sign = (self._least >= 0) | (self._most <= 0)
        return KeySums(self._sums, one_sign, bool(np.isfinite(self._sums).all()))


def key_sums(keys: Keys, groups: Groups, check: Check, divisors: NDArray[np.float64] | None = None) -> KeySums:
    """`divisors` as KeySummer takes them."""
    summer = KeySummer(len(groups.counts), keys.width, divisors)
    summer.add(keys, groups.entries, groups.numbers, check)
    return summer.sums()


def _numbers(keys: Keys, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stored row of each of some entries."""
    return entries if keys.row_of_entry is None else keys.row_of_entry[entries]


def _rows(keys: Keys, entries: NDArray[np.int64], start: int) -> NDArray[np.float32]:
    """The keys of some entries of one block, in the order given."""
    if keys.row_of_entry is not None:
        return keys.of_entries(entries)
    return keys.block(start, min(start + BLOCK, keys.entries))[entries - start]
