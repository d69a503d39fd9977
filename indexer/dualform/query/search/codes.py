"""Keys and queries in eight bits, with what the eight bits leave out.

Shapes: R rows of a key source, n queries, d dimensions; G groups of kernels.ROWS rows, W words of four dimensions.

    x = scale * code + low + r      code from 0 to 255, one scale and one low for each key
    q = scale * code + r            code up to kernels.greatest(), one scale for each query; r may be coded again

so that x . q = scale_x scale_q (code_x . code_q) + low sum(q) up to |r_x| |q| + |x - low - r_x| |r_q|, by Cauchy and
Schwarz. The product of the codes is a sum of integers, exact in any order. The norms of what is left out are stored
with the codes, rounded up, and with the rounding of the float32 formula itself; kernels/codes.c does the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.kernels.workers import divide
from dualform.store.sources.key_source import KeySource

_SLACK = 2.0**-20
"""Relative: far above the rounding of the few float32 operations that it stands for."""
WIDEST = (2**31 - 1) // (255 * 127)
"""Dimensions whose products of codes, all of them the greatest, still add up within 32 bits."""
_MADE_BYTES = 4 << 20
"""Of keys that are read, or made, so that their codes can be."""
_SMALLEST, _LARGEST = 1e-12, 1e12
"""Queries whose greatest number lies outside are not coded: a product of two scales could leave float32."""


@dataclass(frozen=True, eq=False)
class Codes:
    """The keys of one source."""

    codes: NDArray[np.uint8]
    """uint8[G, W, ROWS, 4]."""
    numbers: NDArray[np.float32]
    """float32[4, G * ROWS]: scale, low, and upper bounds of |r| and of |scale * code|."""
    rows: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.numbers.nbytes

    @staticmethod
    def bytes_of(rows: int, width: int) -> int:
        """`nbytes` of the codes that keys float32[rows, width] get."""
        return -(-rows // kernels.ROWS) * kernels.ROWS * (4 * -(-width // 4) + 16)

    @staticmethod
    def room(rows: int, width: int) -> Codes:
        """Zeros, for the codes of float32[rows, width]."""
        groups, words = -(-rows // kernels.ROWS), -(-width // 4)
        return Codes(
            np.zeros((groups, words, kernels.ROWS, 4), np.uint8),
            np.zeros((4, groups * kernels.ROWS), np.float32),
            rows,
        )

    def as_argument(self, first: int, group: NDArray[np.int32] | None) -> arguments.KeyCodes:
        """For the loops. `first` is the source's first row in the layer, `group` int32[all rows of the layer]."""
        return arguments.KeyCodes(self.codes, self.numbers, group, self.rows, first)


def quantise(keys: NDArray[np.float32]) -> Codes:
    """The codes of float32[R, d]. A key that is not finite, or out of range, gets a residual that never excludes it."""
    made = Codes.room(*keys.shape)
    _fill(made, keys)
    return made


def quantise_source(source: KeySource) -> Codes:
    """The codes of a key source, block by block, of which none is kept."""
    source = source.passing()
    made, size = Codes.room(source.rows, source.width), max(1, _MADE_BYTES // (4 * kernels.ROWS * max(1, source.width)))
    for first in range(0, len(made.codes), size):
        start, stop = first * kernels.ROWS, min((first + size) * kernels.ROWS, source.rows)
        numbers = made.numbers[:, start : start + size * kernels.ROWS]
        _fill(Codes(made.codes[first : first + size], numbers, stop - start), source.read(start, stop))
    return made


def _fill(made: Codes, keys: NDArray[np.float32]) -> None:
    if keys.shape[1] == 0:
        return
    argument, step = made.as_argument(0, None), 256

    def work(_: int, start: int) -> None:
        kernels.quantise(argument, keys, start, min(start + step, len(keys)))

    divide(range(0, len(keys), step), work)


@dataclass(frozen=True, eq=False)
class RowFactors:
    """What multiplies the inner products of stored rows, within -1 and 1: between the greatest and the least factor of
    the entries that have the row's key.
    """

    most: NDArray[np.float32]
    """float32[n, all rows of the layer], or float32[1, …] for all queries."""
    least: NDArray[np.float32]
    """Likewise; the same array where each row has one entry."""
    spread: NDArray[np.float32] | None = None
    """Likewise: how far off they may be, beyond what float32 rounds of them; None for no further."""

    @property
    def nbytes(self) -> int:
        return self.most.nbytes + self.least.nbytes + (0 if self.spread is None else self.spread.nbytes)


@dataclass(frozen=True, eq=False)
class QueryCodes:
    """Queries."""

    codes: NDArray[np.int8]
    """int8[tiles, W, tile, 4]: `columns` columns for each query, one after the other."""
    columns: int
    numbers: NDArray[np.float32]
    """float32[6, n]: scale, scale of the second codes, sum, and upper bounds of |q|, of |r| and of the rounding of the
    sum."""

    def as_argument(self, absolute: bool, factors: RowFactors | None = None) -> arguments.QueryCodes:
        """`factors`: of these queries, or of all."""
        own = None if factors is None else (factors.most, factors.least, factors.spread)
        return arguments.QueryCodes(self.codes, self.numbers, self.columns, own, absolute)


def can_quantise(queries: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool[n]: which of float32[n, d] are within range."""
    greatest = np.abs(queries).max(axis=1, initial=0.0)
    return np.asarray((greatest >= _SMALLEST) & (greatest <= _LARGEST))


def quantise_queries(queries: NDArray[np.float32], columns: int = 1) -> QueryCodes:
    """The codes of float32[n, d], which are within range: once or, in two columns, twice."""
    count, width = queries.shape
    wide, greatest = queries.astype(np.float64), kernels.greatest()
    scale = (np.abs(wide).max(axis=1) / greatest).astype(np.float32).astype(np.float64)
    scales = (scale, (scale / (2 * greatest)).astype(np.float32).astype(np.float64))
    left, codes = wide, []
    for step in scales[:columns]:
        codes.append(np.clip(np.rint(left / step[:, None]), -greatest, greatest))
        left = left - codes[-1] * step[:, None]
    coded, sums = wide - left, wide.sum(axis=1)
    slack = _SLACK * (np.abs(sums) + np.abs(wide).sum(axis=1) * 2.0**-20)
    bounds = (_norm(wide), _norm(left) + _SLACK * (_norm(coded) + _norm(wide)), slack)
    numbers = np.array([*scales, sums, *((1 + _SLACK) * bound for bound in bounds)], np.float32)
    return QueryCodes(_in_tiles(np.stack(codes, axis=1).reshape(count * columns, width)), columns, numbers)


def _in_tiles(codes: NDArray[np.float64]) -> NDArray[np.int8]:
    tile, words = kernels.tile(), -(-codes.shape[1] // 4)
    padded = np.zeros((-(-len(codes) // tile) * tile, words * 4), np.int8)
    padded[: len(codes), : codes.shape[1]] = codes
    return np.ascontiguousarray(padded.reshape(-1, tile, words, 4).transpose(0, 2, 1, 3))


def _norm(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return lengths
