"""Finds the best entries of each query by scores of every row.

The k best entries of each query in each group by a scan, exact as in best_entries.

Shapes: n queries, m entries that the mask leaves, G groups, c candidates.

The scores of all slots are held for one query at a time. A group's floor is the k-th best lower bound among its slots;
slots that can reach it are scored again canonically. Where slots have factors of their own, as contributions have, a
slot's score is that of its key times its factor, and slots that share a key differ.

The k best entries of each query by a scan, exact whatever scored the keys.

Shapes: n queries, b rows of a block, c candidates.

Every row whose score could reach the k-th best, given the error bound of the scan, is a candidate. Candidates are
scored again canonically, and only those scores rank, so the answer is that of a canonical scan over every row.

Scores of blocks of keys that are inner products divided by the lengths of key and query.

Shapes: n queries, b rows of a block, c candidates.

The quotient of a scan and the canonical one share their divisor, fl(|x| |q|) of canonical lengths, so that they lie
apart by the bound of the products over that divisor, and by roundings of numbers of about 1: those of two quotients,
and that of the canonical one to the float32 that ranks. What the lengths leave of the bound is a constant but for
products that may have been flushed to zero, which counts for more the shorter the key.

Scores of blocks of keys, with the bound that they keep, and the canonical scores of what is left of them.

Shapes: n queries, b rows of a block, R stored rows, c candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.backends import Backend, Floats, TopKBackend, score_float64
from dualform.query.score.canonical import (
    FLOAT32,
    FLOAT64,
    Bound,
    ProductScore,
    as_float32,
    bound,
    cosines,
    divisors,
    norms,
    overflows,
    score_pairs,
)
from dualform.query.score.key_rows import KeyRows
from dualform.query.view import Check, View


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


Ranked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Entries of the layer and their scores, best first."""


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for: the k best entries of a layer, or of each group."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups | None
    k: int
    check: Check


class Searcher(Protocol):
    def find(self, search: Search, queries: NDArray[np.float32]) -> Sequence[Ranked | None]:
        """The best entries for each of float32[n, d], group after group; None for a query that it cannot decide."""
        ...


_BLOCK_BYTES = 128 << 20
"""Of keys: large blocks, for BLAS is twice as slow on small ones."""
_SPARSE = 4
"""A block of which the mask leaves less than one row in this many is gathered before it is scored."""


@dataclass(frozen=True)
class KeyBlock:
    """Some rows whose scores are asked for."""

    rows: NDArray[np.int64]
    """int64[b], ascending."""
    keys: NDArray[np.float32]
    """float32[b, d]."""
    stays: NDArray[np.bool_] | None
    """bool[b]: which of them count; None where all do."""
    largest: float
    """The largest norm among those that count."""


@dataclass(frozen=True, eq=False)
class Scorer(ABC):
    """Scores one batch of queries. Products are the backend's, in float32, or float64 where float32 could overflow."""

    rows: KeyRows
    queries: NDArray[np.float32]
    norms: NDArray[np.float64]
    """float64[n]."""
    backend: Backend
    wide: bool
    """In float64."""
    bound: Bound
    """Of the products."""

    @classmethod
    def of(cls, search: Search, queries: NDArray[np.float32], *own: Any) -> Self:
        """The scorer of float32[n, d]; `own` are the fields that a kind of scorer adds."""
        lengths, backend = norms(queries), search.view.backend
        wide = overflows(search.rows.largest, float(lengths.max(initial=0.0)))
        unit, rounding = (FLOAT64, 0.0) if wide else (FLOAT32, backend.rounding)
        return cls(search.rows, queries, lengths, backend, wide, bound(queries.shape[1], unit, rounding), *own)

    def products(self, block: KeyBlock, only: NDArray[np.int64] | slice) -> Floats:
        """[n, b]: inner products of some queries."""
        multiply = score_float64 if self.wide else self.backend.scores
        with np.errstate(all="ignore"):  # rows that the mask leaves out may hold anything
            return multiply(block.keys, self.queries[only])

    def canonical_products(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        """float64[c]: the canonical inner products of some rows and one query."""
        return score_pairs(self.rows.keys, rows, np.zeros(len(rows), dtype=np.int64), self.queries[query, None])

    @property
    def linear(self) -> bool:
        """Whether a score is the inner product itself, so that a backend may say which rows are the best of a block."""
        return False

    @abstractmethod
    def scores(self, block: KeyBlock, only: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """[n, b] of all queries, or of some."""

    @abstractmethod
    def errors(self, block: KeyBlock) -> NDArray[np.float64]:
        """float64[n]: how far the scores of a block can lie from the canonical ones."""

    @abstractmethod
    def errors_of(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        """float64[c]: the same of some rows, each for itself, and one query."""

    @abstractmethod
    def canonical(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        """float64[c]: the canonical scores of some rows and one query, by which they rank."""


@dataclass(frozen=True, eq=False)
class ProductScorer(Scorer):
    """Of a score that follows from the inner product: its scores lie as close to the canonical ones as products do."""

    score: ProductScore

    @property
    def linear(self) -> bool:
        return self.score.linear

    def scores(self, block: KeyBlock, only: NDArray[np.int64] | slice = slice(None)) -> Floats:
        return self.score.of(self.products(block, only))

    def errors(self, block: KeyBlock) -> NDArray[np.float64]:
        return self.bound.slope * block.largest * self.norms + self.bound.flush * (block.largest + self.norms + 1.0)

    def errors_of(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        return self.bound.of(self.rows.norms[rows], float(self.norms[query]))

    def canonical(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        return self.score.of(self.canonical_products(rows, query))


ScorerOf: TypeAlias = Callable[[Search, NDArray[np.float32]], Scorer]
"""Makes the scorer of float32[n, d]."""


def block_rows(width: int) -> int:
    return int(np.clip(_BLOCK_BYTES // (4 * max(1, width)), 1024, 1 << 17))


def _ranges(rows: KeyRows) -> Iterator[tuple[int, int]]:
    """Ranges of rows that no key source's end cuts, for a block across it would be copied together."""
    size = block_rows(rows.keys.width)
    for first, last in pairwise([*rows.source_starts, rows.keys.rows]):
        parts = max(1, -(-(last - first) // size))
        yield from pairwise(first + (last - first) * part // parts for part in range(parts + 1))


def blocks(rows: KeyRows) -> Iterator[KeyBlock]:
    """The rows that the mask leaves, block by block; blocks without any are not read."""
    for start, stop in _ranges(rows):
        stays = rows.stays[start:stop]
        count = int(np.count_nonzero(stays))
        if count == 0:
            continue
        keys, numbers = rows.keys.block(start, stop), np.arange(start, stop)
        largest = float(rows.norms[start:stop].max(where=stays, initial=0.0))
        if count == len(stays):
            yield KeyBlock(numbers, keys, None, largest)
        elif count * _SPARSE < len(stays):
            yield KeyBlock(numbers[stays], keys[stays], None, largest)
        else:
            yield KeyBlock(numbers, keys, stays, largest)


_COSINE_ROUNDING = FLOAT32 + 2.0**-50
"""Above that of the float32, of the two quotients, and of the bound itself."""


class CosineScorer(Scorer):
    def scores(self, block: KeyBlock, only: NDArray[np.int64] | slice = slice(None)) -> Floats:
        with np.errstate(all="ignore"):  # rows that the mask leaves out may hold anything
            return cosines(self.products(block, only), self.rows.norms[block.rows], self.norms[only, None])

    def errors(self, block: KeyBlock) -> NDArray[np.float64]:
        rows = block.rows if block.stays is None else block.rows[block.stays]
        return self._errors(divisors(self.rows.norms[rows]).min(), divisors(self.norms))

    def errors_of(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        return self._errors(divisors(self.rows.norms[rows]), divisors(self.norms[query]))

    def canonical(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        """Rounded to float32: float64 tells some keys of one direction apart, and no reader would see by what."""
        found = cosines(self.canonical_products(rows, query), self.rows.norms[rows], self.norms[query])
        return as_float32(found).astype(np.float64)

    def _errors(self, keys: NDArray[np.float64], queries: NDArray[np.float64]) -> NDArray[np.float64]:
        """For lengths of keys and queries, of which one may be a single number."""
        flushed = self.bound.flush * (keys + queries + 1.0) / (keys * queries)
        errors: NDArray[np.float64] = (self.bound.slope + flushed) * (1 + _COSINE_ROUNDING) + _COSINE_ROUNDING
        return errors


BATCH = 128
"""Queries that share one pass over the keys."""
_PENDING = 16384


class Best:
    """The best rows of one query so far, and the candidates that have not been scored yet."""

    def __init__(self, batch: Scorer, query: int, k: int) -> None:
        self._batch, self._query, self._k = batch, query, k
        self._source = batch.rows
        self.floor = -np.inf
        """A lower bound of the k-th best score over all rows seen; -inf while fewer were seen."""
        self._rows = np.empty(0, dtype=np.int64)
        self._scores = np.empty(0)
        self._pending: list[NDArray[np.int64]] = []
        self._low: list[NDArray[np.float64]] = []

    def add(self, rows: NDArray[np.int64], low: NDArray[np.float64]) -> None:
        """Candidates with lower bounds of their scores."""
        self._pending.append(rows)
        self._low.append(low)
        if sum(map(len, self._pending)) > max(_PENDING, 2 * self._k):
            self.settle()
        known = np.concatenate([self._scores, *self._low])
        if len(known) >= self._k:
            self.floor = max(self.floor, float(np.partition(known, len(known) - self._k)[len(known) - self._k]))

    def settle(self) -> None:
        """Score the candidates canonically and keep the best k rows."""
        fresh = np.concatenate([np.empty(0, dtype=np.int64), *self._pending])
        self._pending, self._low = [], []
        rows = np.concatenate([self._rows, fresh])
        scores = np.concatenate([self._scores, self._batch.canonical(fresh, self._query)])
        order = np.lexsort((self._source.first_entries(rows), -scores))[: self._k]
        self._rows, self._scores = rows[order], scores[order]

    def ranked(self) -> Ranked:
        """The k best entries. Every entry of a row that is not among the k best rows is beaten by k others."""
        self.settle()
        entries, index = self._source.entries_of(self._rows)
        scores = self._scores[index]
        order = np.lexsort((entries, -scores))[: self._k]
        return entries[order], scores[order]


def best_entries(search: Search, queries: NDArray[np.float32], scorer: ScorerOf) -> list[Ranked]:
    """The k best entries of each of float32[n, d], or all if the mask leaves fewer."""
    k, check = search.k, search.check
    found = []
    for start in range(0, len(queries), BATCH):
        batch = scorer(search, queries[start : start + BATCH])
        best = [Best(batch, query, k) for query in range(len(batch.queries))]
        for block in blocks(search.rows):
            check()
            _scan(batch, block, best, k)
        for one in best:
            check()
            found.append(one.ranked())
    return found


def _scan(batch: Scorer, block: KeyBlock, best: list[Best], k: int) -> None:
    errors = batch.errors(block)
    undecided = np.arange(len(best))
    if isinstance(batch.backend, TopKBackend) and batch.linear and not batch.wide and block.stays is None:
        undecided = _scan_top(batch.backend, batch, block, best, k, errors)
    if len(undecided):
        scores = batch.scores(block, undecided)
        _offer(scores, block, [best[i] for i in undecided], k, errors[undecided])


def _offer(scores: Floats, block: KeyBlock, best: list[Best], k: int, errors: NDArray[np.float64]) -> None:
    """Hand each query those rows of a block whose score can reach its floor."""
    if block.stays is not None:
        scores[:, ~block.stays] = -np.inf
    for one, row, error in zip(best, scores, errors, strict=True):
        if one.floor == -np.inf and len(row) > k:
            # The k-th best of the block alone bounds the k-th best of all.
            one.floor = float(np.partition(row, len(row) - k)[len(row) - k]) - error
    reached = scores >= _below([one.floor for one in best], errors, scores.dtype)[:, None]
    if block.stays is not None:
        reached &= block.stays
    query, column = np.nonzero(reached)
    cuts = np.searchsorted(query, np.arange(len(best) + 1))
    for i, one in enumerate(best):
        if cuts[i] < cuts[i + 1]:
            columns = column[cuts[i] : cuts[i + 1]]
            one.add(block.rows[columns], scores[i, columns].astype(np.float64) - errors[i])


def _below(floors: list[float], errors: NDArray[np.float64], dtype: np.dtype[np.floating]) -> Floats:
    """The smallest score that can still reach each floor, rounded down to the scores' own precision."""
    with np.errstate(over="ignore"):
        limits: Floats = (np.array(floors) - errors).astype(dtype)
    return np.nextafter(limits, dtype.type(-np.inf))


def _scan_top(
    backend: TopKBackend, batch: Scorer, block: KeyBlock, best: list[Best], k: int, errors: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Let the backend find the best of a block; returns the queries for which it cannot tell which rows matter."""
    count = 2 * k + 16
    if count > len(block.rows) // 4:
        return np.arange(len(best))
    scores, columns = backend.top(block.keys, batch.queries, count)
    undecided = []
    for i, one in enumerate(best):
        floor = max(one.floor, float(scores[i, k - 1]) - errors[i])
        if not float(scores[i, -1]) + 2 * errors[i] < floor:
            undecided.append(i)
            continue
        one.floor = floor
        near = columns[i][scores[i] + errors[i] >= floor]
        if len(near):
            low = scores[i][scores[i] + errors[i] >= floor].astype(np.float64) - errors[i]
            one.add(block.rows[near], low)
    return np.array(undecided, dtype=np.int64)


FactorsOf: TypeAlias = Callable[[int], NDArray[np.float64]]
"""float64[m]: what a query multiplies the score of each entry by, in the order of Groups.entries."""
_MATRIX_BYTES = 128 << 20
_ROUNDING, _TINY = 2.0**-50, 2.0**-1020
"""Above those of a few float64 operations: relative, and of products below the smallest normal number."""
_LOOPED = 512
"""Up to so many groups are partitioned one by one; beyond it, sorting all slots is faster."""


@dataclass(frozen=True, eq=False)
class Members:
    """The entries that stay, group after group."""

    order: NDArray[np.int64]
    """int64[m]: positions in Groups.entries, by group, then ascending."""
    starts: NDArray[np.int64]
    """int64[G + 1]."""
    rows: NDArray[np.int64]
    """int64[m]: the stored row of each position's key."""


def best_of_groups(
    search: Search, queries: NDArray[np.float32], scorer: ScorerOf, factors_of: FactorsOf | None = None
) -> list[Ranked]:
    """For each query, the k best slots of group 0, then of group 1, and so on; a smaller group gives all it has."""
    rows, groups, k, check = search.rows, search.groups, search.k, search.check
    assert groups is not None, "a search without groups is best_entries'"
    members = Members(
        np.argsort(groups.numbers, kind="stable"),
        np.concatenate([[0], np.cumsum(groups.counts)]),
        rows.rows_of(groups.entries),
    )
    size = max(1, _MATRIX_BYTES // (8 * max(1, rows.keys.rows)))
    found = []
    for start in range(0, len(queries), size):
        batch = scorer(search, queries[start : start + size])
        scores = _all_scores(batch, rows, check)
        for i in range(len(batch.queries)):
            check()
            own, errors = scores[i][members.rows], batch.errors_of(members.rows, i)
            factors = None if factors_of is None else factors_of(start + i)
            if factors is not None:
                own *= factors
                # Of the bound itself, of both products of the factor, and of what is too small for a normal number.
                errors = errors * np.abs(factors) * (1 + _ROUNDING) + _ROUNDING * np.abs(own) + _TINY
            near = _candidates(own, errors, groups, members, k)
            check()
            found.append(_ranked(batch, i, groups, members, near, k, factors))
    return found


def _all_scores(batch: Scorer, rows: KeyRows, check: Check) -> NDArray[np.float64]:
    """float64[n, R]: the scan's scores of every row that stays."""
    scores = np.zeros((len(batch.queries), rows.keys.rows))
    for block in blocks(rows):
        check()
        scores[:, block.rows] = batch.scores(block)
    return scores


def _candidates(
    scores: NDArray[np.float64], errors: NDArray[np.float64], groups: Groups, members: Members, k: int
) -> NDArray[np.int64]:
    """int64[c]: positions of the slots that can be among the k best of their group."""
    floors = np.full(len(groups.counts), -np.inf)
    low = scores - errors
    large = np.flatnonzero(groups.counts > k)
    if len(large) <= _LOOPED:
        ordered = low[members.order]
        for g in large:
            own = ordered[members.starts[g] : members.starts[g + 1]]
            floors[g] = np.partition(own, len(own) - k)[len(own) - k]
    else:
        best_first = np.lexsort((-low, groups.numbers))
        floors[large] = low[best_first[members.starts[large] + k - 1]]
    return np.flatnonzero(scores + errors >= floors[groups.numbers])


def _ranked(
    batch: Scorer,
    query: int,
    groups: Groups,
    members: Members,
    near: NDArray[np.int64],
    k: int,
    factors: NDArray[np.float64] | None,
) -> Ranked:
    distinct, index = np.unique(members.rows[near], return_inverse=True)
    scores = batch.canonical(distinct, query)[index]
    if factors is not None:
        scores = scores * factors[near] + 0.0  # -0.0 becomes 0.0
    entries, numbers = groups.entries[near], groups.numbers[near]
    order = np.lexsort((entries, -scores, numbers))
    begins = np.searchsorted(numbers[order], np.arange(len(groups.counts)))
    place = np.arange(len(order)) - begins[numbers[order]]
    kept = order[place < k]
    return entries[kept], scores[kept]
