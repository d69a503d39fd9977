"""Canonical scores of many keys and queries, by the compiled loops where they are there, with canonical.py's bits.

Shapes: m pairs, n queries, r rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels.arguments import RowAddresses
from dualform.kernels.workers import divide
from dualform.query.score.canonical import canonical_scores
from dualform.store.rows import Rows
from dualform.store.sources.segment_rows import FEW_ROWS

HELD_BYTES = 256 << 20
"""Of key sources that are held at once, whatever a cache keeps of them."""
_TAKEN = 8192
"""Rows that are scored together, or copied together where there are no compiled loops."""
_SMALL = 1 << 18
"""Products that are not worth sharing out."""
_TASK = 512
"""Pairs that a worker scores at a time."""


def score_pairs(
    keys: Rows,
    rows: NDArray[np.int64],
    query: NDArray[np.int64],
    queries: NDArray[np.float32],
    check: Callable[[], None] = lambda: None,
) -> NDArray[np.float64]:
    """float64[m]: the canonical score of each of the rows int64[m] with queries[query], of float32[n, d]."""
    scores = np.empty(len(rows))
    if kernels.library() is None:
        for start in range(0, len(rows), _TAKEN):
            check()
            part = slice(start, start + _TAKEN)
            scores[part] = canonical_scores(keys.take(rows[part]), queries[query[part]])
        return scores
    queries = np.ascontiguousarray(queries)
    number = np.searchsorted([source.first_row for source in keys.sources], rows, side="right") - 1
    for run in _runs(keys, np.flatnonzero(np.bincount(number)).tolist()):
        every = np.flatnonzero((number >= run[0]) & (number <= run[-1]))
        for own in _parts(keys, run, every):
            scores[own] = _score_run(keys, run, rows[own], number[own], query[own], queries, check)
    return scores


def _runs(keys: Rows, indexes: list[int]) -> Iterator[list[int]]:
    """Numbers of key sources, in order, that together take at most HELD_BYTES; a larger one goes alone."""
    run, size = list[int](), 0
    for index in indexes:
        own = 4 * keys.width * keys.sources[index].rows
        if run and size + own > HELD_BYTES:
            yield run
            run, size = [], 0
        run.append(index)
        size += own
    if run:
        yield run


def _parts(keys: Rows, run: list[int], pairs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The pairs of a run; those of keys that are made for each of them, so many at once as take HELD_BYTES."""
    made = any(keys.sources[index].made for index in run)
    size = max(1, HELD_BYTES // (4 * max(1, keys.width))) if made else max(1, len(pairs))
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


def _score_run(
    keys: Rows,
    run: list[int],
    rows: NDArray[np.int64],
    number: NDArray[np.int64],
    query: NDArray[np.int64],
    queries: NDArray[np.float32],
    check: Callable[[], None],
) -> NDArray[np.float64]:
    """As score_pairs, of rows in the key sources of a run; `number` is int64[m]: the source of each."""

    def parts() -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.int64]]]:
        for index in run:
            check()  # what is not in memory is read from its file
            source, own = keys.sources[index], number == index
            if np.count_nonzero(own) <= FEW_ROWS:
                source = source.passing(first=True)  # a process that asks once neither waits for memory nor fills it
            yield own, *source.holding(rows[own] - source.first_row)

    addresses, scores = RowAddresses(len(rows), keys.width, parts()), np.empty(len(rows))

    def work(_: int, start: int) -> None:
        part = slice(start, start + _TASK)
        scores[part] = kernels.canonical(addresses[part], query[part], queries)

    divide(range(0, len(rows), _TASK), work, None if len(rows) > _TASK else 1)
    return scores


def score_block(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[r]: the canonical score of every row of float32[r, d] with one query, float32[d]."""
    if kernels.library() is None:
        return canonical_scores(rows, query)
    rows, queries = np.ascontiguousarray(rows), np.ascontiguousarray(query)[None]
    addresses, scores, first = RowAddresses.of(rows), np.empty(len(rows)), np.zeros(_TASK, dtype=np.int64)

    def work(_: int, start: int) -> None:
        own = addresses[start : start + _TASK]
        scores[start : start + len(own)] = kernels.canonical(own, first[: len(own)], queries)

    divide(range(0, len(rows), _TASK), work, None if len(rows) > _TASK else 1)
    return scores


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

    divide(range(0, len(rows), size), work)
    return scores


def score_every(
    keys: Rows, rows: NDArray[np.int64], queries: NDArray[np.float32], check: Callable[[], None]
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
