"""The sum of attention weights of each group.

Shapes: n queries, T slots, G groups, d dimensions, b slots of a block, p pairs of a stored row and a group.

A signed sum is one inner product with the group's sum of keys, sum_{t in g} x_t . q = (sum_{t in g} x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added in float64 in slot order over fixed blocks,
and the product is added as in canonical.py. A sum of absolute values needs every score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.canonical import canonical_scores
from dualform.query.groups import Groups
from dualform.query.key_rows import KeyRows
from dualform.query.view import Check, View
from dualform.store.rows import Keys

BLOCK = 4096
"""Slots that are added together before they join the sum: fixed, for it decides the last bits."""
BUDGET = 256 << 20
"""Bytes of key sums held at once; larger ones are made group range by group range, and not kept."""
_WIDE_BYTES = 64 << 20
"""Of keys in float64, and of scores, while absolute values are summed."""


def signed_sums(
    view: View, layer: str, groups: Groups, identity: str, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]. `identity` is the mask's: with the layer and `by`, it names the key sums in the cache."""
    keys = view.memory.keys(layer)
    count = len(groups.counts)
    range_size = max(1, BUDGET // (8 * max(1, keys.width)))
    if count <= range_size:
        key = ("key sums", layer, identity, groups.by)
        return _products(view.cache.get(key, lambda: key_sums(keys, groups, 0, count, check)), queries, check)
    sums = np.empty((len(queries), count))
    for first in range(0, count, range_size):
        last = min(first + range_size, count)
        sums[:, first:last] = _products(key_sums(keys, groups, first, last, check), queries, check)
    return sums


def key_sums(keys: Keys, groups: Groups, first: int, last: int, check: Check) -> NDArray[np.float64]:
    """float64[last - first, d]: the sum of the keys of each group of a range, the same bits for any range."""
    sums = np.zeros((last - first, keys.width))
    for start in range(0, keys.slots, BLOCK):
        low, high = np.searchsorted(groups.slots, [start, start + BLOCK])
        slots, numbers = groups.slots[low:high], groups.numbers[low:high]
        if (first, last) != (0, len(groups.counts)):
            inside = (numbers >= first) & (numbers < last)
            slots, numbers = slots[inside], numbers[inside]
        if not len(slots):
            continue
        check()
        order = np.argsort(numbers, kind="stable")
        sorted_numbers = numbers[order]
        begins = np.flatnonzero(np.r_[True, sorted_numbers[1:] != sorted_numbers[:-1]])
        rows = _rows(keys, slots[order], start).astype(np.float64)
        sums[sorted_numbers[begins] - first] += _added_in_order(rows, begins)
    return sums


def _added_in_order(rows: NDArray[np.float64], begins: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of each run of rows, added one row after the other; numpy.add.reduceat promises no order.

    All runs advance together: their first rows, then their second ones where they have one, and so on.
    """
    lengths = np.diff(begins, append=len(rows))
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = begins[longest_first], lengths[longest_first]
    added = rows[starts]
    running = np.searchsorted(-lengths, -np.arange(1, lengths[0]), side="left")
    for place, count in enumerate(running.tolist(), start=1):
        added[:count] += rows[starts[:count] + place]
    found = np.empty_like(added)
    found[longest_first] = added
    return found


def _rows(keys: Keys, slots: NDArray[np.int64], start: int) -> NDArray[np.float32]:
    """The keys of some slots of one block, in the order given."""
    if keys.row_of_slot is not None:
        return keys.of_slots(slots)
    return keys.block(start, min(start + BLOCK, keys.slots))[slots - start]


def _products(sums: NDArray[np.float64], queries: NDArray[np.float32], check: Check) -> NDArray[np.float64]:
    result = np.empty((len(queries), len(sums)))
    for i, query in enumerate(queries.astype(np.float64)):
        check()
        result[i] = canonical_scores(sums, query)
    return result


@dataclass(frozen=True, eq=False)
class Pairs:
    """How often each stored row stands in each group."""

    rows: NDArray[np.int64]
    """int64[p], ascending."""
    numbers: NDArray[np.int64]
    """int64[p]: the group."""
    times: NDArray[np.float64]
    """float64[p]: slots of that row in that group."""

    @property
    def nbytes(self) -> int:
        return 24 * len(self.rows)


def absolute_sums(
    view: View, rows: KeyRows, groups: Groups, identity: str, layer: str, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]: sums of |score|, each score a float64 matrix product."""
    key = ("pairs", layer, identity, groups.by)
    pairs = view.cache.get(key, lambda: _pairs(rows, groups))
    sums = np.zeros((len(queries), len(groups.counts)))
    wide = queries.astype(np.float64)
    size = int(np.clip(_WIDE_BYTES // (8 * max(1, rows.keys.width)), 1024, 1 << 16))
    batch = max(1, _WIDE_BYTES // (8 * size))
    for own, numbers, times in _pair_blocks(rows.keys, pairs, size):
        begins = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        for start in range(0, len(wide), batch):
            check()
            scores = np.abs(wide[start : start + batch] @ own.T)
            scores *= times
            sums[start : start + batch, numbers[begins]] += np.add.reduceat(scores, begins, axis=1)
    return sums


def _pairs(rows: KeyRows, groups: Groups) -> Pairs:
    own = rows.rows_of(groups.slots)
    if rows.keys.row_of_slot is None:
        return Pairs(own, groups.numbers, np.ones(len(own)))
    count = len(groups.counts)
    codes, times = np.unique(own * count + groups.numbers, return_counts=True)
    return Pairs(codes // count, codes % count, times.astype(np.float64))


def _pair_blocks(
    keys: Keys, pairs: Pairs, size: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]]:
    """For each block of stored rows: the keys of its pairs by group, their groups, and how often each counts."""
    for start in range(0, keys.rows, size):
        low, high = np.searchsorted(pairs.rows, [start, start + size])
        if low == high:
            continue
        block = keys.block(start, min(start + size, keys.rows))
        for first in range(low, high, size):  # a row may stand in many groups
            part = slice(first, min(first + size, high))
            order = np.argsort(pairs.numbers[part], kind="stable")
            own = block[pairs.rows[part][order] - start].astype(np.float64)
            yield own, pairs.numbers[part][order], pairs.times[part][order]
