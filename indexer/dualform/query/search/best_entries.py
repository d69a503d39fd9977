"""The k best entries of each query by a scan, exact whatever scored the keys.

Shapes: n queries, b rows of a block, c candidates.

Every row whose score could reach the k-th best, given the error bound of the scan, is a candidate. Candidates are
scored again canonically, and only those scores rank, so the answer is that of a canonical scan over every row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Floats, TopKBackend
from dualform.query.search.scan import KeyBlock, Scorer, ScorerOf, blocks
from dualform.query.search.searcher import Ranked, Search

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
