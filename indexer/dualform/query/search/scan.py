"""Scores of blocks of keys, with the bound that they keep, and the canonical scores of what is left of them.

Shapes: n queries, b rows of a block, R stored rows, c candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend, Floats, score_float64
from dualform.query.score.bound import FLOAT32, FLOAT64, Bound, bound, norms, overflows
from dualform.query.score.key_rows import KeyRows
from dualform.query.score.rescoring import score_pairs
from dualform.query.score.score import ProductScore
from dualform.query.search.searcher import Search

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
