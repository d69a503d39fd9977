"""Sums of scores by group: from sums of keys, from single scores, or of absolute values.

The entries of a layer by group, and the two ways in which their scores are added up.

Shapes: n queries, G groups, d dimensions, R stored rows.

A sum of inner products is one inner product with the group's sum of keys, sum_t x_t . q = (sum_t x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added as in key_sums.py, and the product is that
of canonical.py. Where there are so many groups that their sums would be about as large as the keys, as token positions
may be, the scores of their slots are added instead, in slot order. Each score chooses between the two, or brings a
third (absolute sums, below). Either way also weighs each key by a number of its own.

Sums of absolute scores that need every score: a scan over stored rows, each counted as often as a group has it.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dualform import kernels
from dualform.kernels import arguments, sums as loops
from dualform.kernels.workers import cores, divide
from dualform.query.groups import Groups
from dualform.query.score.canonical import FLOAT32, norms, overflows, score_every, score_rows
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.sums.key_sums import KeySums, added_in_order, begins, key_sums, stored_key_sums
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer
from dualform.store.rows import Keys

if TYPE_CHECKING:
    from dualform.query.shards.shards import Shards


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
class AbsoluteScan:
    """Sums over the groups of one mask of a layer."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups
    check: Check

    def sums(
        self,
        chosen: NDArray[np.int64],
        key_sums: NDArray[np.float64],
        signed: NDArray[np.float64],
        queries: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """float64[n, g] of the chosen groups, whose float64[g, d] key sums and float64[n, g] signed sums are known."""
        rows, groups, check = self.rows, self.groups, self.check
        pairs = self._pairs().of(chosen, len(groups.counts))
        sizes, counts = np.bincount(pairs.numbers, minlength=len(chosen)), groups.counts[chosen].astype(np.float64)
        lengths = norms(queries)
        large = np.flatnonzero(sizes >= MANY_ROWS)
        # Twice, for a deviation can be longer than any key.
        if len(queries) < MANY_QUERIES or overflows(2 * rows.largest, float(lengths.max())):
            large = large[:0]
        found = np.empty((len(queries), len(chosen)))
        doubtful = np.ones(found.shape, dtype=bool)
        if len(large):
            own = pairs.of(large, len(chosen))
            means = key_sums[large] / counts[large, None]
            sums, errors = _float32(rows.keys, own, means, signed[:, large] / counts[large], queries, lengths, check)
            found[:, large] = sums
            doubtful[:, large] = ~(errors <= TOLERANCE * sums) | (sums < _TINY)
        asked, left = np.flatnonzero(doubtful.any(axis=1)), np.flatnonzero(doubtful.any(axis=0))
        if len(asked):
            cells = np.ix_(asked, left)
            exact = _float64(rows.keys, pairs.of(left, len(chosen)), len(left), queries[asked], check)
            found[cells] = np.where(doubtful[cells], exact, found[cells])
        return found

    def every(self, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G] of all groups from float64 products, where groups are too many for sums of keys."""
        return _float64(self.rows.keys, self._pairs(), len(self.groups.counts), queries, self.check)

    def _pairs(self) -> Pairs:
        key = ("pairs", self.layer, self.rows.identity, self.groups.by)
        return self.view.cache.get(key, lambda: _pairs(self.rows, self.groups), self.check)


def _pairs(rows: KeyRows, groups: Groups) -> Pairs:
    own = rows.rows_of(groups.entries)
    if rows.keys.row_of_entry is None:
        return Pairs(own, groups.numbers, np.ones(len(own)))
    count = len(groups.counts)
    codes, times = np.unique(own * count + groups.numbers, return_counts=True)
    return Pairs(codes // count, codes % count, times.astype(np.float64))


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

    def add(self, scores: NDArray[np.float32] | NDArray[np.float64], sums: NDArray[np.float64]) -> None:
        """Add [b, n] scores to float64[g, n] sums, in float64, each as many times as its pair says."""
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


class _Room:
    """Memory for the scores of a block, taken once: a page is cleared when it is first written."""

    def __init__(self, dtype: DTypeLike, queries: int) -> None:
        self._numbers = np.empty(_ROWS * min(queries, _BATCH), dtype)

    def of(self, keys: NDArray[Any], queries: NDArray[Any]) -> NDArray[Any]:
        """[b, n] of b keys and n queries."""
        return self._numbers[: len(keys) * len(queries)].reshape(len(keys), len(queries))


def _float64(keys: Keys, pairs: Pairs, count: int, queries: NDArray[np.float32], check: Check) -> NDArray[np.float64]:
    """float64[n, g] from float64 products."""
    # Of each group the sums of all queries lie together, so that many groups are not many places in memory a query.
    sums, wide = np.zeros((count, len(queries))), queries.astype(np.float64)
    room = _Room(np.float64, len(queries))
    for block in _blocks(keys, pairs, check):
        own = block.keys()
        for first in range(0, len(wide), _BATCH):
            check()
            batch = slice(first, first + _BATCH)
            _add(block, np.matmul(own, wide[batch].T, out=room.of(own, wide[batch])), sums[:, batch])
    return sums.T


def _add(block: PairBlock, scores: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    """Add the absolute values of [b, n] scores, which are written over, to float64[g, n] sums."""

    def add(_: int, part: slice) -> None:
        own = scores[:, part]
        if kernels.library() is None:
            block.add(np.abs(own, out=own), sums[:, part])
        else:
            loops.sum_runs(block.compiled, own, sums[:, part])

    divide(_shares(scores), add)


def _shares(scores: NDArray[Any]) -> Iterator[slice]:
    """The queries of [b, n] scores, as many parts as there are cores."""
    size = -(-scores.shape[1] // cores())
    return (slice(first, first + size) for first in range(0, scores.shape[1], size))


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
    room = _Room(np.float32, len(queries))
    narrow = np.ascontiguousarray(base.T, dtype=np.float32)
    for block in _blocks(keys, pairs, check):
        own, sizes = block.deviations(means)
        squares += np.bincount(block.numbers, np.square(block.times * sizes), len(means))
        for first in range(0, len(queries), _BATCH):
            check()
            batch = slice(first, first + _BATCH)
            scores = np.matmul(own, queries[batch].T, out=room.of(own, queries[batch]))
            _add_deviations(block, scores, narrow[:, batch], drift[:, batch], sums[:, batch])
    independent = _DEVIATIONS * FLOAT32 * lengths[:, None] * np.sqrt(squares)
    # Three roundings of a size that the scores themselves bound: of the mean's score, the deviation, and their sum.
    return sums.T, np.abs(drift.T) + independent + 3 * FLOAT32 * sums.T


def _add_deviations(
    block: PairBlock,
    scores: NDArray[np.float32],
    base: NDArray[np.float32],
    drift: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add the deviations' scores to `drift`, and the absolute values of the whole scores to `sums`."""

    def add(_: int, part: slice) -> None:
        own = scores[:, part]
        if kernels.library() is None:
            block.add(own, drift[:, part])
            own += base[block.numbers, part]
            block.add(np.abs(own, out=own), sums[:, part])
        else:
            loops.sum_deviations(block.compiled, own, base[:, part], drift[:, part], sums[:, part])

    divide(_shares(scores), add)


BUDGET = 256 << 20
"""Bytes of key sums that are worth keeping."""
BATCH = 16
"""Queries whose scores of every slot are held at once."""


class KeyWeights(NamedTuple):
    """What the key of each entry is multiplied by before it is added up, or divided."""

    name: tuple[object, ...]
    """Tells these numbers from others of the same layer and mask."""
    of: Callable[[int], NDArray[np.float64]]
    """float64[m] for a query by its number, in the order of the groups' entries."""
    divided: bool = False
    shared: bool = True
    """Whether all queries have the same."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """The entries of one layer that a mask leaves, by group."""

    view: View
    layer: Layer
    groups: Groups
    selection: Selection
    check: Check

    @property
    def many(self) -> bool:
        """Whether there are too many groups for sums of keys."""
        return many(self.layer.d_in, len(self.groups.counts))

    @property
    def elsewhere(self) -> Shards | None:
        """Who answers for the shards, where that is not this process."""
        return self.view.shards if self.selection.source is not None else None

    def rows(self) -> KeyRows:
        """Raises Inexact where a key is not finite."""
        return key_rows(self.view, self.layer.name, self.selection, self.check)

    def sums(self, queries: NDArray[np.float32], weights: KeyWeights | None = None) -> NDArray[np.float64]:
        """float64[n, G]: the sums of each group's weighed inner products. Raises Inexact where a key is not finite."""
        if self.many or (weights is not None and not weights.shared):
            return self.by_slot(queries, weights)
        return score_rows(self.key_sums(weights).sums, queries)

    def key_sums(self, weights: KeyWeights | None = None) -> KeySums:
        """Raises Inexact where a key is not finite. Sums of multiplied keys are not kept on disk."""
        shards, memory = self.elsewhere if weights is None else None, self.view.snapshot

        def made() -> KeySums:
            if shards is not None:
                return shards.key_sums(self)
            numbers, divided = (None, False) if weights is None else (weights.of(0), weights.divided)
            if weights is None or divided:
                return stored_key_sums(memory, self.layer.name, self.groups, self.check, numbers)
            return key_sums(memory.keys(self.layer.name).passing(first=True), self.groups, self.check, numbers)

        name = () if weights is None else weights.name
        key = ("key sums", self.layer.name, self.selection.identity, self.groups.by, *name)
        sums = self.view.cache.get(key, made, self.check)
        if not sums.finite:
            self.rows()  # refuses, and names the slot
        return sums

    def by_slot(
        self, queries: NDArray[np.float32], weights: KeyWeights | None = None, absolute: bool = False
    ) -> NDArray[np.float64]:
        """float64[n, G]: the inner products of all slots, weighed, or their absolute values, added in slot order.

        Raises Inexact where a key is not finite.
        """
        groups, index = self.groups, None
        sums = np.empty((len(queries), len(groups.counts)))
        shards = self.elsewhere if weights is None else None
        if shards is None:
            rows = self.rows()
            own = rows.rows_of(groups.entries)
            if rows.keys.row_of_entry is not None:
                own, index = np.unique(own, return_inverse=True)
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            if shards is not None:
                products = shards.scores(self.layer, self.selection, groups.entries, batch, self.check)
            else:
                products = score_every(rows.keys, own, batch, self.check)
            if absolute:
                np.abs(products, out=products)
            for query, scores in enumerate(products, start):
                self.check()
                terms = scores if index is None else scores[index]
                if weights is not None:
                    terms = (np.divide if weights.divided else np.multiply)(terms, weights.of(query))
                sums[query] = np.bincount(groups.numbers, terms, minlength=len(groups.counts))
            del products, scores, terms  # as large as all else, and not to be held beside the next batch's
        return sums

    def absolute(self, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sums of absolute inner products, to 1e-6 relative. Raises Inexact where a key is not
        finite.

        Where neither a group's keys nor the query change sign, as after a relu, no product changes sign either, and
        the sum of absolute values is the absolute value of the sum. Other groups need every product.
        """
        if self.many:
            return self.by_slot(queries, absolute=True) if self.elsewhere else self._absolute_scan().every(queries)
        known = self.key_sums()
        sums, additive = score_rows(known.sums, queries), one_sign(known, queries)
        if not additive.all():
            some, mixed = np.flatnonzero(~additive.all(axis=1)), np.flatnonzero(~additive.all(axis=0))
            cells = np.ix_(some, mixed)
            sums[cells] = self.absolute_of(mixed, known.sums[mixed], sums[cells], queries[some])
        return np.abs(sums, out=sums)

    def absolute_of(
        self,
        chosen: NDArray[np.int64],
        sums: NDArray[np.float64],
        signed: NDArray[np.float64],
        queries: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """float64[n, g]: sums of absolute inner products of some groups, int64[g], from a scan over their keys.

        Known are their float64[g, d] key sums and float64[n, g] signed sums. Raises Inexact where a key is not finite.
        """
        if self.elsewhere is not None:
            return self.elsewhere.absolute(self, chosen, queries)
        return self._absolute_scan().sums(chosen, sums, signed, queries)

    def _absolute_scan(self) -> AbsoluteScan:
        return AbsoluteScan(self.view, self.layer.name, self.rows(), self.groups, self.check)


def many(width: int, groups: int) -> bool:
    """Whether key sums take more room than they are worth. Nothing else may matter, because this decides bits."""
    return 8 * width * groups > BUDGET


def one_sign(sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool[n, G]: where no inner product of a group's keys with a query has another sign than the others."""
    of_query = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
    found: NDArray[np.bool_] = of_query[:, None] & sums.one_sign
    return found
