"""The searcher that goes over the float32 scores of every row, and decides every query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.search.searcher import Search
from dualform.query.search.top_k import Ranked, best_entries
from dualform.query.search.top_k_by import best_of_groups


class ScanSearcher:
    def find(self, search: Search, queries: NDArray[np.float32]) -> list[Ranked]:
        view, rows, k, score, check = search.view, search.rows, search.k, search.score, search.check
        if search.groups is None:
            return best_entries(view, rows, queries, k, score, check)
        return best_of_groups(view, rows, search.groups, queries, k, score, check)
