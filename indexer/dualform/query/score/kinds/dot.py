"""The inner product itself: positive where key and query agree, negative where they oppose each other."""

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


class Dot:
    name = "dot"
    linear = True
    screens_absolute = False

    def of(self, products: F) -> F:
        return products

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return row_searchers(backend, self)

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """One inner product with each group's sum of keys: sum_t x_t . q = (sum_t x_t) . q."""
        if grouping.many:
            return grouping.by_slot(queries)
        return score_rows(grouping.key_sums().sums, queries)

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        return np.ones((len(queries), len(sums.sums)), dtype=np.bool_)
