"""The k best entries of each query, or of each group, which are the same whichever searcher finds them.

Shapes: n queries, h hits.

The screen (screen_searcher.py) leaves out what is beaten by k others by their codes alone; the scan (scan_searcher.py)
goes over the float32 scores of every row. Both score what is left canonically, so their answers have the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.search.searcher import Search
from dualform.query.search.top_k import Ranked


class Ranking(Search):
    """A search, with the searchers that its score names for the backend."""

    def of(self, queries: NDArray[np.float32]) -> list[Ranked]:
        """The best entries of each query, group after group. A group with fewer than k entries gives all it has."""
        found: dict[int, Ranked] = {}
        left = list(range(len(queries)))
        fallbacks = 0
        for searcher in self.score.searchers(self.view.backend):
            ranked = searcher.find(self, queries[left]) if left else []
            found.update({i: one for i, one in zip(left, ranked, strict=True) if one is not None})
            fallbacks, left = len(left), [i for i in left if i not in found]
        self.view.tally.add(queries=len(queries), fallbacks=fallbacks)
        return [found[i] for i in range(len(queries))]
