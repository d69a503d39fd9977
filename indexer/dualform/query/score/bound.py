"""How far a score that a matrix product found can lie from the canonical one.

Shapes: n queries, b keys, d dimensions.

For a sum of d products, in any order, with or without fused multiply-add, |computed - exact| <= gamma_d |k| |q| with
gamma_d = d u / (1 - d u) and u the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
Products too small for a normal number, and factors that a device flushes to zero, add what _FLUSHED times their number
or the other factor allows. A backend that rounds its factors first (TF32, bfloat16) says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels.arguments import RowAddresses
from dualform.query.score.canonical import canonical_scores

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
