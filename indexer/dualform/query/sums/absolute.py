"""Sums of absolute scores that need every score: a scan over stored rows, each counted as often as a group has it.

Shapes: n queries, g groups, d dimensions, p pairs of a stored row and a group, b pairs of a block, r runs of a block.

    sum_t |x_t . q|  =  sum_t |(x_t - c) . q  +  c . q|        c: the group's mean key

c . q is known from the signed sum in float64, so float32 products are taken of what is left. Of plain keys they are not
good enough: what keys have in common, as the background of an image, makes all their rounding errors alike, and sums
over real keys come out wrong by more than 1e-6. The deviations add up to nothing, so what their float32 scores add up
to is error and nothing else: measured for each query and group. Where that, and what independent errors of the same
size could add, may pass 1e-6 of the sum, the query is answered from float64 products, as are small groups and few
queries. Where groups are too many for sums of keys, as token positions are, all of them are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments, sums as loops
from dualform.kernels.workers import cores, divide
from dualform.query.groups import Groups
from dualform.query.score.canonical import FLOAT32, norms, overflows
from dualform.query.score.key_rows import KeyRows
from dualform.query.sums.key_sums import added_in_order, begins
from dualform.query.view import Check
from dualform.store.rows import Keys

TOLERANCE = 8e-7
"""Of the sum: what float32 may be off by, as estimated. The promise is 1e-6; what the estimate itself may miss, and the
roundings of the float64 sums, have the rest."""
MANY_ROWS = 1024
"""Rows of a group whose float32 errors may be taken to average out."""
MANY_QUERIES = 16
"""From so many on, products cost more than reading and converting the keys."""
_DEVIATIONS = 6
"""Standard deviations of a sum of independent rounding errors that are allowed for."""
_TINY = 1e-30
"""Below this, float32 products may have lost digits to underflow."""
_ROWS, _BATCH = 2048, 1024
"""Pairs and queries whose scores are held at once, within the processor's cache."""
_PART = 64
"""Pairs whose keys a worker prepares at a time."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """How often each stored row stands in each group."""

    rows: NDArray[np.int64]
    """int64[p], ascending."""
    numbers: NDArray[np.int64]
    """int64[p]: the group."""
    times: NDArray[np.float64]
    """float64[p]: entries of that row in that group."""

    @property
    def nbytes(self) -> int:
        return 24 * len(self.rows)

    def of(self, groups: NDArray[np.int64], count: int) -> Pairs:
        """Those of some of `count` groups, which are numbered anew in the order given."""
        anew = np.full(count, -1)
        anew[groups] = np.arange(len(groups))
        numbers = anew[self.numbers]
        kept = numbers >= 0
        return Pairs(self.rows[kept], numbers[kept], self.times[kept])


@dataclass(frozen=True, eq=False)
class PairBlock:
    """Some pairs in runs of one group and one number of times."""

    rows: NDArray[np.float32]
    """float32[…, d]: stored rows, some of which the pairs are of."""
    places: NDArray[np.int64]
    """int64[b]: where the key of each pair stands among them."""
    numbers: NDArray[np.int64]
    """int64[b], ascending."""
    times: NDArray[np.float64]
    """float64[b], ascending within a group."""
    runs: NDArray[np.int64]
    """int64[r]: where each run begins."""

    def keys(self) -> NDArray[np.float64]:
        """float64[b, d]."""
        keys = np.empty((len(self.places), self.rows.shape[1]))

        def copy(_: int, part: slice) -> None:
            keys[part] = self.rows[self.places[part]]

        divide(self._parts(), copy)
        return keys

    def deviations(self, means: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """float32[b, d]: what each key has beyond the float64[G, d] mean of its group; and float64[b]: its length."""
        found, lengths = np.empty((len(self.places), self.rows.shape[1]), np.float32), np.empty(len(self.places))

        def subtract(_: int, part: slice) -> None:
            keys = self.rows[self.places[part]]
            groups = self.numbers[part]
            own = means[groups[0]] if groups[0] == groups[-1] else means[groups]  # ascending
            np.subtract(keys, own, out=found[part], dtype=np.float64, casting="same_kind")
            lengths[part] = norms(found[part])

        divide(self._parts(), subtract)
        return found, lengths

    def _parts(self) -> Iterator[slice]:
        return (slice(first, first + _PART) for first in range(0, len(self.places), _PART))

    @cached_property
    def compiled(self) -> arguments.Runs:
        """For the loops."""
        starts = np.append(self.runs, len(self.numbers))
        return arguments.Runs(starts, self.numbers[self.runs], self.times[self.runs])

    def add(self, scores: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
        """Add the absolute values of float64[b, n] scores, which are written over, to float64[g, n] sums."""

        def work(_: int, part: slice) -> None:
            own = scores[:, part]
            if kernels.library() is None:
                self._add(np.abs(own, out=own), sums[:, part])
            else:
                loops.sum_runs(self.compiled, own, sums[:, part])

        divide(_shares(scores), work)

    def add_deviations(
        self,
        scores: NDArray[np.float32],
        base: NDArray[np.float32],
        drift: NDArray[np.float64],
        sums: NDArray[np.float64],
    ) -> None:
        """Add the scores of deviations to `drift`, and the absolute values of the whole scores to `sums`."""

        def work(_: int, part: slice) -> None:
            own = scores[:, part]
            if kernels.library() is None:
                self._add(own, drift[:, part])
                own += base[self.numbers, part]
                self._add(np.abs(own, out=own), sums[:, part])
            else:
                loops.sum_deviations(self.compiled, own, base[:, part], drift[:, part], sums[:, part])

        divide(_shares(scores), work)

    def _add(self, scores: NDArray[np.float32] | NDArray[np.float64], sums: NDArray[np.float64]) -> None:
        """Add scores to sums, in float64, each as many times as its pair says."""
        own = added_in_order(scores, self.runs) * self.times[self.runs, None]
        groups = begins(self.numbers[self.runs])
        sums[self.numbers[self.runs[groups]]] += added_in_order(own, groups)


def _blocks(keys: Keys, pairs: Pairs, check: Check) -> Iterator[PairBlock]:
    for start in range(0, keys.rows, _ROWS):
        low, high = np.searchsorted(pairs.rows, [start, start + _ROWS])
        if low == high:
            continue
        block = keys.block(start, min(start + _ROWS, keys.rows))
        for first in range(low, high, _ROWS):  # a row may stand in many groups
            check()
            part = slice(first, min(first + _ROWS, high))
            order = np.lexsort((pairs.times[part], pairs.numbers[part]))
            numbers, times = pairs.numbers[part][order], pairs.times[part][order]
            changes = (numbers[1:] != numbers[:-1]) | (times[1:] != times[:-1])
            runs = np.flatnonzero(np.r_[True, changes])
            yield PairBlock(block, pairs.rows[part][order] - start, numbers, times, runs)


def _scores(
    keys: NDArray[Any], queries: NDArray[Any], room: NDArray[Any], check: Check
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Batches of queries with their products [b, n] of some keys. They lie in `room`, which is taken once: a page is
    cleared when it is first written.
    """
    for first in range(0, len(queries), _BATCH):
        check()
        batch = slice(first, first + _BATCH)
        own = queries[batch].T
        yield batch, np.matmul(keys, own, out=room[: len(keys) * own.shape[1]].reshape(len(keys), -1))


def _shares(scores: NDArray[Any]) -> Iterator[slice]:
    """The queries of [b, n] scores, as many parts as there are cores."""
    size = -(-scores.shape[1] // cores())
    return (slice(first, first + size) for first in range(0, scores.shape[1], size))


def row_pairs(rows: KeyRows, groups: Groups) -> Pairs:
    """Of the entries of all groups."""
    own = rows.rows_of(groups.entries)
    if rows.keys.row_of_entry is None:
        return Pairs(own, groups.numbers, np.ones(len(own)))
    count = len(groups.counts)
    codes, times = np.unique(own * count + groups.numbers, return_counts=True)
    return Pairs(codes // count, codes % count, times.astype(np.float64))


def absolute_sums(
    rows: KeyRows,
    pairs: Pairs,
    counts: NDArray[np.float64],
    key_sums: NDArray[np.float64],
    signed: NDArray[np.float64],
    queries: NDArray[np.float32],
    check: Check,
) -> NDArray[np.float64]:
    """float64[n, g]: of groups with float64[g] `counts`, float64[g, d] key sums and float64[n, g] signed sums."""
    groups, lengths = len(counts), norms(queries)
    large = np.flatnonzero(np.bincount(pairs.numbers, minlength=groups) >= MANY_ROWS)
    # Twice, for a deviation can be longer than any key.
    if len(queries) < MANY_QUERIES or overflows(2 * rows.largest, float(lengths.max())):
        large = large[:0]
    found = np.empty((len(queries), groups))
    doubtful = np.ones(found.shape, dtype=bool)
    if len(large):
        means, base = key_sums[large] / counts[large, None], signed[:, large] / counts[large]
        sums, errors = _float32(rows.keys, pairs.of(large, groups), means, base, queries, lengths, check)
        found[:, large] = sums
        doubtful[:, large] = ~(errors <= TOLERANCE * sums) | (sums < _TINY)
    asked, left = np.flatnonzero(doubtful.any(axis=1)), np.flatnonzero(doubtful.any(axis=0))
    if len(asked):
        cells = np.ix_(asked, left)
        exact = every_absolute_sum(rows.keys, pairs.of(left, groups), len(left), queries[asked], check)
        found[cells] = np.where(doubtful[cells], exact, found[cells])
    return found


def every_absolute_sum(
    keys: Keys, pairs: Pairs, groups: int, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, g] from float64 products."""
    # Of each group the sums of all queries lie together, so that many groups are not many places in memory a query.
    sums, wide = np.zeros((groups, len(queries))), queries.astype(np.float64)
    room = np.empty(_ROWS * min(len(queries), _BATCH))
    for block in _blocks(keys, pairs, check):
        for batch, scores in _scores(block.keys(), wide, room, check):
            block.add(scores, sums[:, batch])
    return sums.T


def _float32(
    keys: Keys,
    pairs: Pairs,
    means: NDArray[np.float64],
    base: NDArray[np.float64],
    queries: NDArray[np.float32],
    lengths: NDArray[np.float64],
    check: Check,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[n, g] from float32 products of deviations from float64[g, d] means, and how far off they may be.

    `base` is float64[n, g]: the means' scores.
    """
    sums, drift, squares = np.zeros(base.T.shape), np.zeros(base.T.shape), np.zeros(len(means))
    narrow, room = (
        np.ascontiguousarray(base.T, dtype=np.float32),
        np.empty(_ROWS * min(len(queries), _BATCH), np.float32),
    )
    for block in _blocks(keys, pairs, check):
        own, sizes = block.deviations(means)
        squares += np.bincount(block.numbers, np.square(block.times * sizes), len(means))
        for batch, scores in _scores(own, queries, room, check):
            block.add_deviations(scores, narrow[:, batch], drift[:, batch], sums[:, batch])
    independent = _DEVIATIONS * FLOAT32 * lengths[:, None] * np.sqrt(squares)
    # Three roundings of a size that the scores themselves bound: of the mean's score, the deviation, and their sum.
    return sums.T, np.abs(drift.T) + independent + 3 * FLOAT32 * sums.T
