"""The k best slots of each query, or of each group, over the windows seen so far.

Shapes: n queries, G groups, h hits. The best of all windows are among the best of each, and every window is asked as a
memory of its own, so the ids and scores are those of a stored memory, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Hits, Scan
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.cells import best_of_cells
from dualform.query.search.searcher import Search
from dualform.query.search.top_k import best
from dualform.query.view import never
from dualform.questions import TopK
from dualform.rerun.window import Window

_PENDING = 1 << 16
"""Hits that wait at least before they are merged. With many groups they wait until they are as many as those kept, so
that merging costs a few sorts of the answer, however many windows there are."""


@dataclass(frozen=True, eq=False)
class _Hits:
    """Hits that may still be part of the answer."""

    cells: NDArray[np.int64]
    """int64[h]: query * G + group."""
    entries: NDArray[np.int64]
    """int64[h]: of the layer."""
    scores: NDArray[np.float64]
    """float64[h]: canonical, not yet rounded."""


class RunningBest:
    """Hits by cell: query after query, and in each group after group."""

    def __init__(self, resolved: Resolved[TopK]) -> None:
        self.resolved, self._k = resolved, resolved.question.k
        self._groups = 1 if resolved.groups is None else len(resolved.groups.counts)
        self._kept = _Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        self._pending: list[_Hits] = []
        self.seconds = 0.0

    def add(self, window: Window) -> None:
        resolved, k, layer = self.resolved, self._k, self.resolved.layer.name
        selection = window.selection(resolved.selection)
        if not selection.count:
            return
        groups, numbers = None, np.zeros(1, dtype=np.int64)
        counts = np.array([selection.count])
        if resolved.groups is not None:
            groups, numbers = window.groups(resolved.groups)
            counts = groups.counts
        rows = key_rows(window.view, layer, selection, never)
        search = Search(window.view, layer, rows, groups, k, never)
        ranked = best(search, resolved.score.searchers(window.view.backend), resolved.queries)
        of_hit = np.repeat(numbers, np.minimum(counts, k))
        for query, (entries, scores) in enumerate(ranked):
            self._pending.append(_Hits(query * self._groups + of_hit, entries + window.start, scores))
        if sum(len(found.cells) for found in self._pending) >= max(_PENDING, len(self._kept.cells)):
            self._merge()

    def _merge(self) -> None:
        parts = [self._kept, *self._pending]
        cells = np.concatenate([part.cells for part in parts])
        entries = np.concatenate([part.entries for part in parts])
        scores = np.concatenate([part.scores for part in parts])
        kept = best_of_cells(cells, scores, entries, self._k)
        self._kept, self._pending = _Hits(cells[kept], entries[kept], scores[kept]), []

    def answer(self, scan: Scan) -> Hits:
        self._merge()
        resolved, groups = self.resolved, self.resolved.groups
        there = np.array([resolved.selection.count]) if groups is None else groups.counts
        counts = np.tile(np.minimum(there, self._k), (len(resolved.queries), 1))
        names = None if groups is None else groups.keys
        scan = replace(scan, slots_matching=resolved.selection.count, seconds=self.seconds)
        ids = resolved.view.snapshot.entries(resolved.layer.name).slots_of(self._kept.entries)
        return Hits(ids, as_float32(self._kept.scores), counts, names, resolved.question.by, scan, resolved.layer.space)
