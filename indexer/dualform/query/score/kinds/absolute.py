"""The absolute value of the inner product, as the paper takes it where inputs can be negative.

Where neither a group's keys nor the query change sign, as after a relu, no score changes sign either, and the sum of
absolute values is the absolute value of the signed sum. Other groups need every score (query/sums/absolute_sum.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend
from dualform.query.score.rescoring import score_rows
from dualform.query.score.score import F
from dualform.query.search.searcher import Searcher
from dualform.query.search.searchers import row_searchers
from dualform.query.sums.grouping import Grouping
from dualform.query.sums.key_sums import KeySums


class Absolute:
    name = "abs"
    linear = False
    screens_absolute = True

    def of(self, products: F) -> F:
        np.abs(products, out=products)
        return products

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return row_searchers(backend, self)

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """To 1e-6 relative."""
        if grouping.many:
            return grouping.every_absolute(queries)
        known = grouping.key_sums()
        sums, additive = score_rows(known.sums, queries), self.additive(known, queries)
        if not additive.all():
            some, mixed = np.flatnonzero(~additive.all(axis=1)), np.flatnonzero(~additive.all(axis=0))
            cells = np.ix_(some, mixed)
            sums[cells] = grouping.absolute(mixed, known.sums[mixed], sums[cells], queries[some])
        return np.abs(sums, out=sums)

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        one_sign = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
        additive: NDArray[np.bool_] = one_sign[:, None] & sums.one_sign
        return additive
