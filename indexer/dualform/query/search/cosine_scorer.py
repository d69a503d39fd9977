"""Scores of blocks of keys that are inner products divided by the lengths of key and query.

Shapes: n queries, b rows of a block, c candidates.

The quotient of a scan and the canonical one share their divisor, fl(|x| |q|) of canonical lengths, so that they lie
apart by the bound of the products over that divisor, and by the rounding of two quotients of about 1 at most. What the
lengths leave of the bound is a constant but for products that may have been flushed to zero, which counts for more the
shorter the key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Floats
from dualform.query.score.canonical import divisors
from dualform.query.search.scan import KeyBlock, Scorer

_ROUNDING = 2.0**-50
"""Above that of the two quotients, and of the bound itself."""


class CosineScorer(Scorer):
    def scores(self, block: KeyBlock, only: NDArray[np.int64] | slice = slice(None)) -> Floats:
        found = np.multiply.outer(divisors(self.norms[only]), divisors(self.rows.norms[block.rows]))
        with np.errstate(all="ignore"):  # rows that the mask leaves out may hold anything
            return np.divide(self.products(block, only), found, out=found)

    def errors(self, block: KeyBlock) -> NDArray[np.float64]:
        rows = block.rows if block.stays is None else block.rows[block.stays]
        return self._errors(divisors(self.rows.norms[rows]).min(), divisors(self.norms))

    def errors_of(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        return self._errors(divisors(self.rows.norms[rows]), divisors(self.norms[query]))

    def canonical(self, rows: NDArray[np.int64], query: int) -> NDArray[np.float64]:
        lengths = divisors(self.rows.norms[rows]) * divisors(self.norms[query])
        return self.canonical_products(rows, query) / lengths

    def _errors(self, keys: NDArray[np.float64], queries: NDArray[np.float64]) -> NDArray[np.float64]:
        """For lengths of keys and queries, of which one may be a single number."""
        flushed = self.bound.flush * (keys + queries + 1.0) / (keys * queries)
        errors: NDArray[np.float64] = (self.bound.slope + flushed) * (1 + _ROUNDING) + _ROUNDING
        return errors
