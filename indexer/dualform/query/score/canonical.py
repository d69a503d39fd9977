"""The score that is reported, how far a computed one can lie from it, and how many are rescored at once.

Canonical scores of many keys and queries, by the compiled loops where they are there, with canonical.py's bits.

Shapes: m pairs, n queries, r rows, d dimensions.

How far a score that a matrix product found can lie from the canonical one.

Shapes: n queries, b keys, d dimensions.

For a sum of d products, in any order, with or without fused multiply-add, |computed - exact| <= gamma_d |k| |q| with
gamma_d = d u / (1 - d u) and u the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
Products too small for a normal number, and factors that a device flushes to zero, add what _FLUSHED times their number
or the other factor allows. A backend that rounds its factors first (TF32, bfloat16) says by how much.

The score that is reported: one number for one key and one query, whatever found the pair.

Shapes: m pairs, d dimensions, n queries, G groups.

A float32 product is exact in float64; the products are then added as a binary tree over the dimensions, padded with
zeros to a power of two: x[:h] + x[h:], halved until one number is left. Neither the batch, the block, the backend nor
the number of threads changes that order, so the same pair gives the same bits everywhere. A matrix product does not:
BLAS picks its order by the shape of the whole product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels.arguments import RowAddresses
from dualform.kernels.workers import divide
from dualform.store.rows import Rows
from dualform.store.sources.segment_rows import FEW_ROWS

_CHUNK_BYTES = 1 << 20
"""Products held at once, so that the tree is added within the processor's cache."""


def tree_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row of float64[m, d] in the canonical order, as float64[m]. Overwrites `terms`."""
    width = terms.shape[1]
    if width == 0:
        return np.zeros(len(terms))
    while width > 1:
        half = 1 << ((width - 1).bit_length() - 1)
        # The columns past `width` would be the padding: adding their zeros changes nothing.
        terms[:, : width - half] += terms[:, half:width]
        width = half
    return terms[:, 0] + 0.0  # -0.0 becomes 0.0


def canonical_scores(
    keys: NDArray[np.float32] | NDArray[np.float64], query: NDArray[np.float32] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """The score of each of [m, d] keys for one query [d], or for its own query [m, d], as float64[m]."""
    scores = np.empty(len(keys))
    for start, stop in chunks(len(keys), keys.shape[1]):
        own = query[start:stop] if query.ndim == 2 else query
        scores[start:stop] = tree_sum(np.multiply(keys[start:stop], own, dtype=np.float64))
    return scores


def divisors(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an inner product is divided by to take its key or query at length 1: 1.0 for a length of 0, where it is 0.

    Lengths are canonical too: the roots of the canonical scores of a key or a query with itself, which no float32 makes
    overflow or underflow.
    """
    return np.where(lengths == 0, 1.0, lengths)


def cosines(
    products: NDArray[np.float32] | NDArray[np.float64], keys: NDArray[np.float64], queries: NDArray[np.float64]
) -> NDArray[np.float64]:
    """x . q / (|x| |q|) in float64, 0.0 where either is of no length, for inner products of any shape.

    `keys` and `queries` are the lengths, and broadcast to that shape.
    """
    lengths = divisors(queries) * divisors(keys)
    return np.divide(products, lengths, out=lengths)


def chunks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose float64 products fit the cache."""
    size = max(1, _CHUNK_BYTES // (8 * max(1, width)))
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def as_float32(scores: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounded to the float32 that is reported; what lies beyond float32 becomes infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return scores.astype(np.float32)


FLOAT32 = 2.0**-24
"""Unit roundoff of float32."""
FLOAT64 = 2.0**-53
_FLUSHED = 2.0**-126
"""The smallest normal float32: what is smaller may have been taken as zero."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Bound:
    """|score - canonical| <= slope * |key| * |query| + flush * (|key| + |query| + 1)."""

    slope: float
    flush: float

    def of(self, key_norms: NDArray[np.float64], query_norm: float) -> NDArray[np.float64]:
        """float64[b] for float64[b] norms of keys and the norm of one query."""
        return self.slope * query_norm * key_norms + self.flush * (key_norms + (query_norm + 1.0))


def bound(d: int, unit: float, rounding: float = 0.0) -> Bound:
    """The bound for d dimensions, unit roundoff `unit` and factors rounded to a relative `rounding` beforehand."""
    # Two more terms than dimensions: the canonical sum has an error of its own, and so have the norms.
    gamma = (d + 2) * unit / (1 - (d + 2) * unit) if (d + 2) * unit < 0.5 else np.inf
    factors = (1 + rounding) ** 2
    flush = 4 * max(1, d) * _FLUSHED if unit == FLOAT32 else 0.0
    return Bound(slope=factors * (1 + gamma) - 1 + (d + 2) * FLOAT64, flush=flush)


def overflows(key_norm: float, query_norm: float) -> bool:
    """Whether a float32 product of a key and a query of these norms could leave float32.

    Every partial sum is at most |key| |query|, so below the limit none can.
    """
    return not key_norm * query_norm < 0.5 * _LARGEST


def norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """The canonical length of each of float32[b, d], as float64[b]: the root of its canonical score with itself.

    Not finite where a row is not, 0.0 only where all of it is 0.
    """
    if kernels.library() is None:
        return np.sqrt(canonical_scores(rows, rows))
    rows = np.ascontiguousarray(rows)
    return np.sqrt(kernels.canonical(RowAddresses.of(rows), np.arange(len(rows)), rows))


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
