"""Canonical scores of many keys and queries, by the compiled loops where they are there, with canonical.py's bits.

Shapes: m pairs, n queries, r rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.query.canonical import canonical_scores
from dualform.query.workers import share
from dualform.store.rows import Keys

_TAKEN = 8192
"""Rows that are scored together, or copied together where there are no compiled loops."""
_SMALL = 1 << 18
"""Products that are not worth sharing out."""
_TASK = 512
"""Pairs that a worker scores at a time."""


def score_pairs(
    keys: Keys, rows: NDArray[np.int64], query: NDArray[np.int64], queries: NDArray[np.float32]
) -> NDArray[np.float64]:
    """float64[m]: the canonical score of each of the rows int64[m] with queries[query], of float32[n, d]."""
    scores = np.empty(len(rows))
    if kernels.library() is None:
        for start in range(0, len(rows), _TAKEN):
            part = slice(start, start + _TAKEN)
            scores[part] = canonical_scores(keys.take(rows[part]), queries[query[part]])
        return scores
    addresses, held = _addresses(keys, rows)
    queries, query = np.ascontiguousarray(queries), np.ascontiguousarray(query)

    def work(_: int, start: int) -> None:
        part = slice(start, start + _TASK)
        scores[part] = kernels.canonical(addresses[part], query[part], queries)

    if len(rows) <= _TASK:
        work(0, 0)
    else:
        share(range(0, len(rows), _TASK), work)
    del held
    return scores


def _addresses(keys: Keys, rows: NDArray[np.int64]) -> tuple[NDArray[np.uint64], list[NDArray[np.float32]]]:
    """Where each row lies in memory, and the matrices that must be held meanwhile."""
    firsts = np.array([segment.first_row for segment in keys.segments], dtype=np.int64)
    number = np.searchsorted(firsts, rows, side="right") - 1
    bases = np.zeros(len(firsts), dtype=np.uint64)
    held = []
    for wanted in np.flatnonzero(np.bincount(number)).tolist():
        held.append(keys.matrix(keys.segments[wanted]))
        bases[wanted] = held[-1].ctypes.data
    return bases[number] + (4 * keys.width * (rows - firsts[number])).astype(np.uint64), held


def score_rows(rows: NDArray[np.float64], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[n, r]: the canonical score of every row of float64[r, d] with every query of float32[n, d]."""
    if kernels.library() is None:
        return np.stack([canonical_scores(rows, query.astype(np.float64)) for query in queries])
    queries = np.ascontiguousarray(queries)
    if rows.size * len(queries) <= _SMALL:
        return kernels.canonical_rows(rows, queries)
    scores = np.empty((len(queries), len(rows)))
    size = max(1, _SMALL // max(1, rows.shape[1]))

    def work(_: int, start: int) -> None:
        scores[:, start : start + size] = kernels.canonical_rows(rows[start : start + size], queries)

    share(range(0, len(rows), size), work)
    return scores


def score_every(
    keys: Keys, rows: NDArray[np.int64], queries: NDArray[np.float32], check: Callable[[], None]
) -> NDArray[np.float64]:
    """float64[n, m]: the canonical score of every one of some rows int64[m] with every query of float32[n, d]."""
    scores = np.empty((len(queries), len(rows)))
    query = np.arange(len(queries))
    for start in range(0, len(rows), _TAKEN):
        check()
        own = rows[start : start + _TAKEN]
        # A row's queries one after the other, while the cache holds the row.
        found = score_pairs(keys, np.repeat(own, len(queries)), np.tile(query, len(own)), queries)
        scores[:, start : start + _TAKEN] = found.reshape(len(own), len(queries)).T
    return scores
