"""The searchers of stored rows.

The screen, for scores that follow from the inner product, leaves out what k others beat by their codes alone; the scan
goes over the float32 scores of every row. Both score what is left canonically, so their answers have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend
from dualform.query.score.score import ProductScore
from dualform.query.search.best_entries import best_entries
from dualform.query.search.best_of_groups import best_of_groups
from dualform.query.search.scan import ProductScorer, ScorerOf
from dualform.query.search.screen import Screen
from dualform.query.search.screen_searcher import ScreenSearcher
from dualform.query.search.searcher import Ranked, Search, Searcher


@dataclass(frozen=True)
class ScanSearcher:
    """Decides every query."""

    scorer: ScorerOf

    def find(self, search: Search, queries: NDArray[np.float32]) -> list[Ranked]:
        return (best_entries if search.groups is None else best_of_groups)(search, queries, self.scorer)


def scan_of(score: ProductScore) -> ScanSearcher:
    return ScanSearcher(lambda search, queries: ProductScorer.of(search, queries, score))


def row_searchers(backend: Backend, score: ProductScore) -> list[Searcher]:
    """The screen where the backend has one, then the scan, which decides whatever the screen leaves."""
    scan: Searcher = scan_of(score)
    # Asking whether it is a ScreenBackend takes Python nearly a tenth of a millisecond, at every question.
    own: Screen | None = getattr(backend, "screen", None)
    return [scan] if own is None else [ScreenSearcher(own, score), scan]
