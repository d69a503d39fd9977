"""Exact top-k: candidates by scores with a bound, reranked canonically, held in one buffer, plain or by group.

Shapes: n queries, b rows of a block, R stored rows, H entries, G groups (1 without columns), c candidates.

A score is the inner product of key and query times a weight of the row or entry, or its absolute value
(query/score/algebra.py). Whatever computes it, each score lies within a known distance of the canonical one. What could
reach the k-th best lower bound of its cell is a candidate; only canonical scores rank, so the answer is that of a
canonical scan over every row. A cell is one group of one query.

Candidates are stored rows. They are entries where entries that share a key differ: in group, or in weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.algebra import Score, Weights
from dualform.query.score.backends import Floats, score_float64
from dualform.query.score.canonical import FLOAT32, FLOAT64, bound, norms, overflows, score_pairs
from dualform.query.score.key_rows import KeyRows
from dualform.query.view import Check, View
from dualform.store.sources.key_format import KeySource

Ranked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Entries of the layer and their scores, best first."""

_BLOCK_BYTES = 128 << 20
"""Of keys: large blocks, for BLAS is twice as slow on small ones."""
_SPARSE = 4
"""A block of which the mask leaves less than one row in this many is gathered before it is scored."""
BATCH = 128
"""Queries that share one pass over the keys."""
_CELLS = 1 << 22
"""Cells of the queries that share one."""
_PENDING = 1 << 17
"""Candidates that wait to be scored, at least."""
_SLACK = 2.0**-22
"""Relative: above what float32 and a few float64 operations round of a weight, of its product and of a score that is
ranked as float32."""


def best_of_cells(
    cells: NDArray[np.int64], scores: NDArray[np.float64], entries: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """Where the k best of each cell stand: by cell, then score descending, then entry ascending."""
    order = np.argsort(-scores)
    ranked = scores[order]
    if (ranked[1:] == ranked[:-1]).any():
        order = np.lexsort((entries, -scores))
    # NumPy sorts 16 bits by radix, many times faster than 64.
    narrow = np.uint16 if cells.max(initial=0) < 1 << 16 else np.int64
    order = order[np.argsort(cells[order].astype(narrow), kind="stable")]
    ordered = cells[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    place = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept: NDArray[np.int64] = order[place < k]
    return kept


class CellHits(NamedTuple):
    """Entries with their canonical scores, by cell (query * G + group)."""

    cells: NDArray[np.int64]
    entries: NDArray[np.int64]
    scores: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[CellHits]) -> CellHits:
        empty = cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        return cls(*map(np.concatenate, zip(empty, *parts, strict=True)))

    def best(self, k: int) -> CellHits:
        kept = best_of_cells(self.cells, self.scores, self.entries, k)
        return CellHits(self.cells[kept], self.entries[kept], self.scores[kept])


@dataclass(frozen=True, eq=False)
class Units:
    """What candidates are."""

    entries: bool
    """Whether they are entries, not stored rows."""
    group: NDArray[np.int32] | None
    """int32[R or H]: the group of each, -1 for one that the mask leaves out; None if all are in group 0."""
    sources: Sequence[KeySource] = ()
    """The key sources of which the mask leaves a row."""

    @property
    def nbytes(self) -> int:
        return 0 if self.group is None else self.group.nbytes

    def groups_of(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(units), np.int64) if self.group is None else self.group[units].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for: the k best entries of a layer for each query, or of each group."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups | None
    k: int
    queries: NDArray[np.float32]
    """float32[n, d]."""
    absolute: bool
    """Whether the absolute value of the product counts."""
    weights: Weights | None
    """What multiplies products; None for 1."""
    check: Check

    @classmethod
    def of(
        cls,
        score: Score,
        view: View,
        layer: str,
        rows: KeyRows,
        groups: Groups | None,
        k: int,
        queries: NDArray[np.float32],
        check: Check,
    ) -> Search:
        weights = score.weights(view, layer, rows, queries)
        return cls(view, layer, rows, groups, k, queries, score.absolute, weights, check)

    @property
    def cells_each(self) -> int:
        """G."""
        return 1 if self.groups is None else len(self.groups.counts)

    @property
    def by_row(self) -> bool:
        """Whether all entries of a stored row score alike."""
        return self.weights is None or self.weights.by_row

    @cached_property
    def units(self) -> Units:
        """Rows, where each is in one group only; else entries."""
        key = ("units", self.layer, self.rows.identity, () if self.groups is None else self.groups.by)
        return self.view.cache.get(key, self._units)

    def _units(self) -> Units:
        rows, groups = self.rows, self.groups
        sources = tuple(s for s in rows.keys.sources if rows.stays[s.first_row : s.first_row + s.rows].any())
        if groups is None:
            return Units(False, None if rows.stays.all() else np.where(rows.stays, 0, -1).astype(np.int32), sources)
        of_row, own = np.full(rows.keys.rows, -1, np.int32), rows.rows_of(groups.entries)
        of_row[own] = groups.numbers
        alone = rows.keys.row_of_entry is None or np.array_equal(of_row[own], groups.numbers)
        return Units(False, of_row, sources) if alone else self.entry_units()

    def entry_units(self) -> Units:
        if self.groups is None:
            return Units(True, None)
        of_entry = np.full(self.rows.keys.entries, -1, np.int32)
        of_entry[self.groups.entries] = self.groups.numbers
        return Units(True, of_entry)

    def exact(
        self, products: NDArray[np.float64], query: NDArray[np.int64] | int, of: NDArray[np.int64] | None
    ) -> NDArray[np.float64]:
        """float64[c]: the canonical scores of canonical products, which may be written over; `of` are rows, or entries
        unless `by_row`, where None is all that stay.
        """
        if self.absolute:
            return np.abs(products, out=products)
        return products if self.weights is None else self.weights.weigh(products, query, of, self.check)


def rerank(search: Search, query: NDArray[np.int64], units: NDArray[np.int64], of: Units) -> CellHits:
    """The k best of each cell among candidates: units int64[c] of the queries int64[c]."""
    keys, k = search.rows, search.k
    if of.entries:
        # The entries of a row share its product.
        pairs, index = np.unique(query * keys.keys.rows + keys.rows_of(units), return_inverse=True)
        number, rows = np.divmod(pairs, max(1, keys.keys.rows))
        products = score_pairs(keys.keys, rows, number, search.queries, search.check)
        if search.by_row:
            products = search.exact(products, number, rows)
        scores, entries = products[index], units
    else:
        scores = score_pairs(keys.keys, units, query, search.queries, search.check)
        if search.by_row:
            scores = search.exact(scores, query, units)
            if keys.keys.row_of_entry is not None:
                # A row that k others of its cell beat brings none of its entries, however many those are.
                cells = query * search.cells_each + of.groups_of(units)
                kept = best_of_cells(cells, scores, keys.first_entries(units), k)
                query, units, scores = query[kept], units[kept], scores[kept]
        entries, index = keys.entries_of(units)
        query, units, scores = query[index], units[index], scores[index]
    if not search.by_row:
        scores = search.exact(scores, query, entries)
    return CellHits(query * search.cells_each + of.groups_of(units), entries, scores).best(k)


class TopKBuffer:
    """The best of each cell so far, and the candidates that have not been scored yet."""

    def __init__(self, search: Search, numbers: NDArray[np.int64], of: Units) -> None:
        """`numbers`: of the queries."""
        self._search, self._numbers, self._of = search, numbers, of
        self.floors = np.full((len(numbers), search.cells_each), -np.inf)
        """A lower bound of the k-th best score of each cell; -inf while fewer were seen."""
        self._pending: list[tuple[int, NDArray[np.int64]]] = []
        self._waiting = 0
        self._best = CellHits.joined([])

    def offer(
        self, place: int, units: NDArray[np.int64], scores: Floats, errors: NDArray[np.float64] | np.float64
    ) -> None:
        """The scores of some units for one query, and how far off they may be. What could reach its floor is held."""
        floors = self.floors[place]
        groups = None if len(floors) == 1 or self._of.group is None else self._of.group[units]
        own = floors[0] if groups is None else floors[groups]
        if np.min(own, initial=np.inf) == -np.inf:
            self._raise(floors, scores - errors, groups)
            own = floors[0] if groups is None else floors[groups]
        found = units[scores >= own - errors]
        if len(found):
            self._pending.append((place, found))
            self._waiting += len(found)
            if self._waiting > max(_PENDING, 2 * self._search.k * self.floors.size):
                self._settle()

    def _raise(self, floors: NDArray[np.float64], low: NDArray[np.float64], groups: NDArray[np.int32] | None) -> None:
        """To the k-th best lower bounds of some units alone."""
        k = self._search.k
        if groups is None:
            if len(low) >= k:
                floors[0] = max(floors[0], np.partition(low, len(low) - k)[len(low) - k])
            return
        order = np.lexsort((-low, groups))
        starts = np.searchsorted(groups[order], np.arange(len(floors) + 1))
        enough = np.flatnonzero(np.diff(starts) >= k)
        floors[enough] = np.maximum(floors[enough], low[order[starts[enough] + k - 1]])

    def _settle(self) -> None:
        """Score the candidates canonically and keep the best."""
        search, k = self._search, self._search.k
        counts = [len(units) for _, units in self._pending]
        places = np.repeat(np.array([place for place, _ in self._pending], np.int64), counts)
        units = np.concatenate([np.empty(0, np.int64), *(units for _, units in self._pending)])
        self._pending, self._waiting = [], 0
        found = rerank(search, self._numbers[places], units, self._of)
        self._best = best = CellHits.joined([self._best, found]).best(k)
        last = np.flatnonzero(best.cells[k - 1 :] == best.cells[: max(0, len(best.cells) - k + 1)])
        query, group = np.divmod(best.cells[last], search.cells_each)
        cell = np.searchsorted(self._numbers, query), group
        self.floors[cell] = np.maximum(self.floors[cell], best.scores[last + k - 1])

    def hits(self) -> CellHits:
        self._settle()
        return self._best


def block_rows(width: int) -> int:
    return int(np.clip(_BLOCK_BYTES // (4 * max(1, width)), 1024, 1 << 17))


def _blocks(rows: KeyRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Numbers and keys of rows, block by block, of blocks of which the mask leaves any: few of them are gathered. No
    block goes across the end of a key source, for it would be copied together.
    """
    size = block_rows(rows.keys.width)
    for first, last in pairwise([*rows.source_starts, rows.keys.rows]):
        parts = max(1, -(-(last - first) // size))
        for start, stop in pairwise(first + (last - first) * part // parts for part in range(parts + 1)):
            stays = rows.stays[start:stop]
            if count := int(np.count_nonzero(stays)):
                keys, numbers = rows.keys.block(start, stop), np.arange(start, stop)
                few = count * _SPARSE < len(stays)
                yield (numbers[stays], keys[stays]) if few else (numbers, keys)


def scan(search: Search, numbers: NDArray[np.int64]) -> CellHits:
    """The best of the queries with these numbers, ascending, by products of every row: in float32, or in float64 where
    float32 could overflow.
    """
    repeats = search.rows.keys.row_of_entry is not None
    of = search.units if search.by_row or not repeats else search.entry_units()
    size = int(np.clip(_CELLS // search.cells_each, 1, BATCH))
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return CellHits.joined([_scan(search, batch, of) for batch in batches])


def _scan(search: Search, batch: NDArray[np.int64], of: Units) -> CellHits:
    rows, weights, backend = search.rows, search.weights, search.view.backend
    queries = search.queries[batch]
    lengths, buffer = norms(queries), TopKBuffer(search, batch, of)
    wide = overflows(rows.largest, float(lengths.max(initial=0.0)))
    multiply = score_float64 if wide else backend.scores
    within = bound(rows.keys.width, *((FLOAT64, 0.0) if wide else (FLOAT32, backend.rounding)))
    for numbers, keys in _blocks(rows):
        search.check()
        with np.errstate(all="ignore"):  # rows that the mask leaves out may hold anything
            products = multiply(keys, queries)
        units, index = numbers, None
        if of.entries:
            units, index = rows.entries_of(numbers)
        elif not (stays := rows.stays[numbers]).all():
            index = np.flatnonzero(stays)
            units = numbers[index]
        own = numbers if index is None else numbers[index]
        sizes = rows.norms[own]
        for place, query in enumerate(batch.tolist()):
            scores = products[place] if index is None else products[place][index]
            if search.absolute:
                scores = np.abs(scores)
            if weights is None:
                errors = within.of(sizes.max(), lengths[place])
            else:
                worth = weights.at(query, own if weights.by_row else units, search.check)
                scores = scores * worth
                errors = within.of(sizes, lengths[place]) * np.abs(worth) * (1 + _SLACK)
                errors += _SLACK * np.abs(scores) + weights.tiny
            buffer.offer(place, units, scores, errors)
    return buffer.hits()
