"""The sum of the keys of each group: what a signed sum needs of the memory.

Shapes: H entries of the layer, G groups, d dimensions, b entries of a block.

Keys are added in float64, in the order of the slots within fixed blocks and then block by block, so that the sums have
the same bits however they are asked for. The signs of the keys are learned in the same pass.

Rows of a matrix added together, run by run.

Shapes: b rows in r runs, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.query.groups import Groups, StoredArrays
from dualform.query.view import Check
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import Keys


def begins(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[r]: where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]) if len(numbers) else np.empty(0, np.int64)


def added_in_order(rows: NDArray[np.float32] | NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[r, d]: the sum of each run of rows, added one row after the other; numpy.add.reduceat promises no order.

    All runs advance together: their first rows, then their second ones where they have one, and so on.
    """
    if len(starts) == len(rows):
        return rows.astype(np.float64, copy=False)
    lengths = np.diff(starts, append=len(rows))
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    added = rows[starts].astype(np.float64, copy=False)
    running = np.searchsorted(-lengths, -np.arange(1, lengths[0]), side="left")
    for place, count in enumerate(running.tolist(), start=1):
        added[:count] += rows[starts[:count] + place]
    found = np.empty_like(added)
    found[longest_first] = added
    return found


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


@dataclass(frozen=True, eq=False)
class BlockSums:
    """The keys of some entries of one block, added up by group. g groups that have any."""

    groups: NDArray[np.int64]
    """int64[g], ascending."""
    sums: NDArray[np.float64]
    """float64[g, d]."""
    least: NDArray[np.float32]
    """float32[g]: the least number of a group's keys, or 0."""
    most: NDArray[np.float32]
    """float32[g]: the greatest, or 0."""


class KeySummer:
    """Adds keys up, over one stretch of entries after another."""

    def __init__(
        self, groups: int, width: int, weights: NDArray[np.float64] | None = None, divided: bool = False
    ) -> None:
        """Before they are added, keys are multiplied by `weights`, float64[H] of entries, or divided; None for 1."""
        self._weights, self._divided = weights, divided
        self._sums = np.zeros((groups, width))
        self._least, self._most = np.zeros((2, groups), dtype=np.float32)

    def add(self, keys: Keys, entries: NDArray[np.int64], numbers: NDArray[np.int64], check: Check) -> None:
        """Add the keys of some entries, ascending, to the groups of those numbers, int64[m] each.

        Entries count from the first of `keys`, which must be the first of a block of the whole.
        """
        for block in block_slices(entries, keys.entries):
            check()
            self.add_block(self._sums_of(keys, entries[block], numbers[block]))

    def _sums_of(self, keys: Keys, entries: NDArray[np.int64], numbers: NDArray[np.int64]) -> BlockSums:
        weights = self._weights
        if weights is None and kernels.library() is not None and (found := _added_runs(keys, entries, numbers)):
            return found
        rows = sorted_rows(keys, entries, numbers)
        return added(rows, None if weights is None else weights[rows.entries, None], self._divided)

    def add_block(self, block: BlockSums) -> None:
        """Add what was added up of the next block."""
        own = block.groups
        self._least[own] = np.minimum(self._least[own], block.least)
        self._most[own] = np.maximum(self._most[own], block.most)
        self._sums[own] += block.sums

    def sums(self) -> KeySums:
        """Of everything added so far."""
        one_sign = (self._least >= 0) | (self._most <= 0)
        return KeySums(self._sums, one_sign, bool(np.isfinite(self._sums).all()))


def key_sums(
    keys: Keys,
    groups: Groups,
    check: Check,
    weights: NDArray[np.float64] | None = None,
    divided: bool = False,
) -> KeySums:
    """As KeySummer; `weights` are float64[m], of the groups' entries."""
    of_entries = None
    if weights is not None:
        of_entries = np.zeros(keys.entries)
        of_entries[groups.entries] = weights
    summer = KeySummer(len(groups.counts), keys.width, of_entries, divided)
    summer.add(keys, groups.entries, groups.numbers, check)
    return summer.sums()


def block_slices(entries: NDArray[np.int64], count: int) -> Iterator[slice]:
    """Where those of each block stand among some of `count` entries, ascending; blocks without any are left out."""
    cuts = np.searchsorted(entries, np.arange(0, count + BLOCK, BLOCK)).tolist()
    return (slice(low, high) for low, high in pairwise(cuts) if low < high)


class SortedRows(NamedTuple):
    """The keys of some entries of one block by group, and of each group in order. g groups that have any."""

    entries: NDArray[np.int64]
    """int64[b]."""
    keys: NDArray[np.float32]
    """float32[b, d]."""
    runs: NDArray[np.int64]
    """int64[g]: where each group begins."""
    groups: NDArray[np.int64]
    """int64[g], ascending."""


def sorted_rows(keys: Keys, entries: NDArray[np.int64], numbers: NDArray[np.int64]) -> SortedRows:
    """Of entries, ascending, of one block, and the group of each."""
    order = np.argsort(numbers, kind="stable")
    chosen, ordered = entries[order], numbers[order]
    runs = begins(ordered)
    if keys.row_of_entry is not None:
        return SortedRows(chosen, keys.of_entries(chosen), runs, ordered[runs])
    first, last = int(entries[0]), int(entries[-1])
    return SortedRows(chosen, keys.block(first, last + 1)[chosen - first], runs, ordered[runs])


def _added_runs(keys: Keys, entries: NDArray[np.int64], numbers: NDArray[np.int64]) -> BlockSums | None:
    """As `added` of `sorted_rows`, without copies, by the compiled loops; None where a sum is not finite."""
    order = np.argsort(numbers, kind="stable")
    runs = begins(numbers[order])
    sums, least, most = kernels.add_runs(keys.addresses(_numbers(keys, entries[order])), runs)
    return BlockSums(numbers[order][runs], sums, least, most) if np.isfinite(sums).all() else None


def added(rows: SortedRows, weights: NDArray[np.float64] | None = None, divided: bool = False) -> BlockSums:
    """The sums of one block's keys, each multiplied by its own of float64[b, 1], or divided."""
    keys, runs = rows.keys, rows.runs
    least = np.minimum.reduceat(keys.min(axis=1, initial=0), runs)
    most = np.maximum.reduceat(keys.max(axis=1, initial=0), runs)
    sums = np.empty((len(runs), keys.shape[1]))
    for first in range(0, keys.shape[1], _COLUMNS):
        columns = slice(first, first + _COLUMNS)
        wide = keys[:, columns].astype(np.float64)
        if weights is not None:
            (np.divide if divided else np.multiply)(wide, weights, out=wide)
        sums[:, columns] = added_in_order(wide, runs)
    return BlockSums(rows.groups, sums, least, most)


def _numbers(keys: Keys, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stored row of each of some entries."""
    return entries if keys.row_of_entry is None else keys.row_of_entry[entries]


KIND = f"key sums 2 of {BLOCK}"


def stored_key_sums(
    memory: Snapshot, layer: str, groups: Groups, check: Check, divisors: NDArray[np.float64] | None = None
) -> KeySums:
    """As `key_sums`, of the keys of a layer, divided: the same bits, for a file holds what would be made."""
    keys, count = memory.keys(layer), len(groups.counts)
    members = np.frombuffer(groups.digest, np.uint8)
    place = StoredArrays.of(memory, KIND, [keys], [members, divisors, np.array(count)])
    held = place.read((np.float64, (count, keys.width)), (np.bool_, (count,))) if place else None
    if held is not None:
        sums, one_sign = held
        return KeySums(sums, one_sign, bool(np.isfinite(sums).all()))
    made = key_sums(keys.passing(first=True), groups, check, divisors, divided=True)
    if place:
        place.write(made.sums, made.one_sign)
    return made
