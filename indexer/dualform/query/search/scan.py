"""Scores of blocks of keys, with the bound that they keep.

Shapes: n queries, b rows of a block, R stored rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend, Floats, score_float64
from dualform.query.score.bound import FLOAT32, FLOAT64, Bound, bound, norms, overflows
from dualform.query.score.key_rows import KeyRows
from dualform.query.score.score import Score

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


@dataclass(frozen=True)
class Scorer:
    """Scores one batch of queries: in float32 by the backend, or in float64 where float32 could overflow."""

    queries: NDArray[np.float32]
    norms: NDArray[np.float64]
    """float64[n]."""
    backend: Backend
    wide: bool
    """In float64."""
    bound: Bound
    score: Score

    def scores(self, block: KeyBlock, only: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """[n, b] of all queries, or of some. They lie as close to the canonical scores as the products do."""
        queries = self.queries[only]
        with np.errstate(all="ignore"):  # rows that the mask leaves out may hold anything
            multiply = score_float64 if self.wide else self.backend.scores
            products: Floats = multiply(block.keys, queries)
        return self.score.of(products)

    def errors(self, largest: float) -> NDArray[np.float64]:
        """float64[n]: the bound for keys of norms up to `largest`."""
        return self.bound.slope * largest * self.norms + self.bound.flush * (largest + self.norms + 1.0)


def scorer(rows: KeyRows, queries: NDArray[np.float32], backend: Backend, score: Score) -> Scorer:
    lengths = norms(queries)
    wide = overflows(rows.largest, float(lengths.max(initial=0.0)))
    unit, rounding = (FLOAT64, 0.0) if wide else (FLOAT32, backend.rounding)
    return Scorer(queries, lengths, backend, wide, bound(queries.shape[1], unit, rounding), score)


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
