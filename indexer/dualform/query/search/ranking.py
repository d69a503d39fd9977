"""The k best entries of each query, or of each group: found by one searcher or another, always the same.

Shapes: n queries, h hits.

The screen (screen_searcher.py) leaves out what is beaten by k others by their codes alone; the scan (scan_searcher.py)
goes over the float32 scores of every row. Both score what is left canonically, so their answers have the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import HoldsCodes
from dualform.query.search.scan_searcher import ScanSearcher
from dualform.query.search.screen_searcher import ScreenSearcher
from dualform.query.search.searcher import Search, Searcher
from dualform.query.search.top_k import Ranked


class Ranking(Search):
    """A search, with the searchers that the backend allows."""

    def of(self, queries: NDArray[np.float32]) -> list[Ranked]:
        """For each query its best entries, group after group; all there are where those are fewer than k."""
        found: dict[int, Ranked] = {}
        left = list(range(len(queries)))
        fallbacks = 0
        for searcher in self._searchers():
            ranked = searcher.find(self, queries[left]) if left else []
            found.update({i: one for i, one in zip(left, ranked, strict=True) if one is not None})
            fallbacks, left = len(left), [i for i in left if i not in found]
        self.view.tally.add(queries=len(queries), fallbacks=fallbacks)
        return [found[i] for i in range(len(queries))]

    def _searchers(self) -> list[Searcher]:
        """The last one answers whatever the others leave."""
        backend = self.view.backend
        first: list[Searcher] = [ScreenSearcher(backend.codes)] if isinstance(backend, HoldsCodes) else []
        return [*first, ScanSearcher()]
