"""The searcher that screens rows by their codes before it scores any.

Shapes: n queries, R stored rows.

A row that the screen leaves out is beaten by k others (screen.py). The rows that it keeps are scored canonically.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import KeyRows
from dualform.query.score.rescoring import score_pairs
from dualform.query.score.score import ProductScore
from dualform.query.search.cells import best_of_cells
from dualform.query.search.codes import WIDEST, Codes, can_quantise
from dualform.query.search.screen import Request, Screen
from dualform.query.search.searcher import Ranked, Search
from dualform.store.sources.key_source import KeySource

_ONE_IN = 4
"""If more than one row in so many were to be found, the screen would keep nearly all of them."""


@dataclass(frozen=True, eq=False)
class ScreenSearcher:
    screen: Screen
    score: ProductScore

    def find(self, search: Search, queries: NDArray[np.float32]) -> list[Ranked | None]:
        found: list[Ranked | None] = [None] * len(queries)
        request = request_of(search, self.screen, self.score.screens_absolute)
        if request is None:
            return found
        able = np.flatnonzero(can_quantise(queries))
        for start in range(0, len(able), request.batch):
            batch = able[start : start + request.batch]
            for i, ranked in zip(batch.tolist(), self._screened(search, queries[batch], request), strict=True):
                found[i] = ranked
        return found

    def _screened(self, search: Search, queries: NDArray[np.float32], request: Request) -> list[Ranked | None]:
        """None for a query that has more candidates than are worth scoring."""
        rows, k = search.rows, search.k
        near = self.screen.candidates(rows.keys, queries, request, search.check, rows.norms)
        search.check()
        began = time.perf_counter()
        scores = self.score.of(score_pairs(rows.keys, near.rows, near.query, queries, search.check))
        took = time.perf_counter() - began
        search.view.tally.add(candidates=len(scores), rescoring_seconds=took)
        cells = near.query * request.groups + (0 if request.group is None else request.group[near.rows])
        # Rows first: a row that k others of its group beat brings none of its entries, however many those are.
        kept = best_of_cells(cells, scores, rows.first_entries(near.rows), k)
        entries, index = rows.entries_of(near.rows[kept])
        cells, scores = cells[kept][index], scores[kept][index]
        if rows.keys.row_of_entry is not None:
            kept = best_of_cells(cells, scores, entries, k)
            entries, cells, scores = entries[kept], cells[kept], scores[kept]
        cuts = np.searchsorted(cells, np.arange(len(queries) + 1) * request.groups)
        return [
            None if near.crowded[i] else (entries[cuts[i] : cuts[i + 1]], scores[cuts[i] : cuts[i + 1]])
            for i in range(len(queries))
        ]


def request_of(search: Search, screen: Screen, absolute: bool) -> Request | None:
    """What the screen should look for; None if it could not help. `absolute` as Request has it."""
    rows, groups = search.rows, search.groups
    count = 1 if groups is None else len(groups.counts)
    if not 0 < rows.keys.width <= WIDEST or search.k * count * _ONE_IN > rows.keys.rows:
        return None
    key = ("row groups", search.layer, rows.identity, () if groups is None else groups.by)
    made = search.view.cache.get(key, lambda: _row_groups(rows, groups))
    # Keys that are made anew for every question should at least not be coded anew as well.
    coded = sum(Codes.bytes_of(source.rows, source.width) for source in made.sources if source.made)
    if not made.alone or coded > screen.codes.most_bytes:
        return None
    return Request(search.k, count, made.of_row, absolute, made.sources)


@dataclass(frozen=True, eq=False)
class _RowGroups:
    """The group of each stored row, in the form that the screen takes."""

    of_row: NDArray[np.int32] | None
    """int32[R]: the group of each stored row, -1 for one that the mask leaves out; None if all are in group 0."""
    alone: bool
    """Whether each row belongs to one group only; a repeated key may belong to several."""
    sources: Sequence[KeySource]
    """The key sources of which the mask leaves a row."""

    @property
    def nbytes(self) -> int:
        return 0 if self.of_row is None else self.of_row.nbytes


def _row_groups(rows: KeyRows, groups: Groups | None) -> _RowGroups:
    sources = tuple(s for s in rows.keys.sources if rows.stays[s.first_row : s.first_row + s.rows].any())
    if groups is None:
        of_row = None if rows.stays.all() else np.where(rows.stays, 0, -1).astype(np.int32)
        return _RowGroups(of_row, True, sources)
    of_row, own = np.full(rows.keys.rows, -1, dtype=np.int32), rows.rows_of(groups.entries)
    of_row[own] = groups.numbers
    alone = rows.keys.row_of_entry is None or bool(np.array_equal(of_row[own], groups.numbers))
    return _RowGroups(of_row if alone else None, alone, sources)
