"""Canonical scores of many pairs of a row and a query, by the compiled loops where they are there.

Shapes: m pairs, n queries, d dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query import kernels
from dualform.query.canonical import canonical_scores
from dualform.query.workers import share
from dualform.store.rows import Keys

_TAKEN = 8192
"""Rows that are copied together where there are no compiled loops."""
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
    for wanted in np.unique(number).tolist():
        held.append(keys.matrix(keys.segments[wanted]))
        bases[wanted] = held[-1].ctypes.data
    return bases[number] + (4 * keys.width * (rows - firsts[number])).astype(np.uint64), held
