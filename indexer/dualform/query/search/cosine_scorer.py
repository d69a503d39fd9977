"""Scores of blocks of keys that are inner products divided by the lengths of key and query.

Shapes: n queries, b rows of a block, c candidates.

The quotient of a scan and the canonical one share their divisor, fl(|x| |q|) of canonical lengths, so that they lie
apart by the bound of the products over that divisor, and by roundings of numbers of about 1: those of two quotients,
and that of the canonical one to the float32 that ranks. What the lengths leave of the bound is a constant but for
products that may have been flushed to zero, which counts for more the shorter the key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Floats
from dualform.query.score.bound import FLOAT32
from dualform.query.score.canonical import as_float32, cosines, divisors
from dualform.query.search.scan import KeyBlock, Scorer

_ROUNDING = FLOAT32 + 2.0**-50
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
        errors: NDArray[np.float64] = (self.bound.slope + flushed) * (1 + _ROUNDING) + _ROUNDING
        return errors
