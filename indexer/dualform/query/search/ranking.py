"""The k best slots of each query, or of each group: screened by codes, scored canonically, ranked.

Shapes: n queries, m slots that the mask leaves, R stored rows, G groups, c candidates.

Exact by construction: what the screen leaves out is beaten by k others (screen.py), and what it leaves in is scored as
canonical.py says. Queries that it cannot decide, and backends that have no codes, go through the float32 scan of
top_k.py and top_k_by.py, which gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.backends import HoldsCodes
from dualform.query.score.key_rows import KeyRows
from dualform.query.score.rescoring import score_pairs
from dualform.query.search import top_k, top_k_by
from dualform.query.search.codes import WIDEST, CodesCache, can_quantise
from dualform.query.search.screen import Wanted, screen
from dualform.query.search.top_k import Ranked
from dualform.query.view import Check, View
from dualform.store.rows import Segment

_ONE_IN = 4
"""Asked for more than one row in so many, the screen would leave nearly all of them."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """One question: the k best slots, of each group where there are groups."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups | None
    k: int
    absolute: bool
    check: Check

    def of(self, queries: NDArray[np.float32]) -> list[Ranked]:
        """For each query its best slots, group after group; all there are where those are fewer than k."""
        view, wanted, backend = self.view, self._wanted(), self.view.backend
        if wanted is None or not isinstance(backend, HoldsCodes):
            view.tally.add(queries=len(queries), fallbacks=len(queries))
            return self._scanned(queries)
        found: dict[int, Ranked] = {}
        able = np.flatnonzero(can_quantise(queries))
        for start in range(0, len(able), wanted.batch):
            batch = able[start : start + wanted.batch]
            ranked = self._screened(backend.codes, queries[batch], wanted)
            found.update({i: one for i, one in zip(batch.tolist(), ranked, strict=True) if one is not None})
        left = [i for i in range(len(queries)) if i not in found]
        if left:
            found.update(zip(left, self._scanned(queries[left]), strict=True))
        view.tally.add(queries=len(queries), fallbacks=len(left))
        return [found[i] for i in range(len(queries))]

    def _wanted(self) -> Wanted | None:
        """What the screen is to look for; None where it could not help."""
        count = 1 if self.groups is None else len(self.groups.counts)
        if not 0 < self.rows.keys.width <= WIDEST or self.k * count * _ONE_IN > self.rows.keys.rows:
            return None
        group = self._group_of_rows()
        return None if group is None else Wanted(self.k, count, group.of_row, self.absolute, group.segments)

    def _group_of_rows(self) -> _RowGroups | None:
        identity, by = self.rows.identity, () if self.groups is None else self.groups.by
        made = self.view.cache.get(
            ("row groups", self.layer, identity, by), lambda: _row_groups(self.rows, self.groups)
        )
        return made if made.alone else None

    def _scanned(self, queries: NDArray[np.float32]) -> list[Ranked]:
        view, rows, k, absolute, check = self.view, self.rows, self.k, self.absolute, self.check
        if self.groups is None:
            return top_k.best_slots(view, rows, queries, k, absolute, check)
        return top_k_by.best_of_groups(view, rows, self.groups, queries, k, absolute, check)

    def _screened(self, codes: CodesCache, queries: NDArray[np.float32], wanted: Wanted) -> list[Ranked | None]:
        """None for a query that the screen could not decide."""
        near = screen(self.rows.keys, codes, queries, wanted, self.check)
        self.check()
        began = time.perf_counter()
        scores = score_pairs(self.rows.keys, near.rows, near.query, queries)
        took = time.perf_counter() - began
        self.view.tally.add(candidates=len(scores), rescoring_seconds=took)
        if self.absolute:
            scores = np.abs(scores)
        cells = near.query * wanted.groups + (0 if wanted.group is None else wanted.group[near.rows])
        # Rows first: a row that k others of its group beat brings none of its slots, however many those are.
        kept = best_of_cells(cells, scores, self.rows.first_slots(near.rows), self.k)
        slots, index = self.rows.slots_of(near.rows[kept])
        cells, scores = cells[kept][index], scores[kept][index]
        if self.rows.keys.row_of_slot is not None:
            kept = best_of_cells(cells, scores, slots, self.k)
            slots, cells, scores = slots[kept], cells[kept], scores[kept]
        cuts = np.searchsorted(cells, np.arange(len(queries) + 1) * wanted.groups)
        return [
            None if near.crowded[i] else (slots[cuts[i] : cuts[i + 1]], scores[cuts[i] : cuts[i + 1]])
            for i in range(len(queries))
        ]


def best_of_cells(
    cells: NDArray[np.int64], scores: NDArray[np.float64], slots: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """Where the k best of each cell stand: by cell, then score descending, then slot ascending."""
    order = np.argsort(-scores)
    ranked = scores[order]
    if (ranked[1:] == ranked[:-1]).any():
        order = np.lexsort((slots, -scores))
    # NumPy sorts 16 bits by radix, many times faster than 64.
    narrow = np.uint16 if cells.max(initial=0) < 1 << 16 else np.int64
    order = order[np.argsort(cells[order].astype(narrow), kind="stable")]
    ordered = cells[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    place = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept: NDArray[np.int64] = order[place < k]
    return kept


@dataclass(frozen=True, eq=False)
class _RowGroups:
    of_row: NDArray[np.int32] | None
    """int32[R]: the group of each stored row, -1 for one that the mask leaves out; None where all are group 0."""
    alone: bool
    """Whether no row stands in two groups, as a repeated key may."""
    segments: Sequence[Segment]
    """Those of which the mask leaves a row."""

    @property
    def nbytes(self) -> int:
        return 0 if self.of_row is None else self.of_row.nbytes


def _row_groups(rows: KeyRows, groups: Groups | None) -> _RowGroups:
    segments = tuple(s for s in rows.keys.segments if rows.stays[s.first_row : s.first_row + s.rows].any())
    if groups is None:
        of_row = None if rows.stays.all() else np.where(rows.stays, 0, -1).astype(np.int32)
        return _RowGroups(of_row, True, segments)
    of_row, own = np.full(rows.keys.rows, -1, dtype=np.int32), rows.rows_of(groups.slots)
    of_row[own] = groups.numbers
    alone = rows.keys.row_of_slot is None or bool(np.array_equal(of_row[own], groups.numbers))
    return _RowGroups(of_row if alone else None, alone, segments)
