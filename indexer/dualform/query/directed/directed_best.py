"""The best slots by their contributions along a direction.

Shapes: n queries, m entries whose gradient an update used, d of a key, c candidates.

The screen of keys leaves out rows all of whose entries k others beat, by the codes of the keys and by what the values
are worth (row_factors.py). What it cannot decide is scanned: every product of keys in float32, with its bound, times
the canonical worth of every value. Either way canonical contributions rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform.query.directed.directed_values import DirectedValues
from dualform.query.directed.row_factors import most_queries, row_factors
from dualform.query.groups import group_entries
from dualform.query.score.kinds.dot import Dot
from dualform.query.score.rescoring import score_pairs
from dualform.query.search.best_of_groups import best_of_groups
from dualform.query.search.cells import best_of_cells
from dualform.query.search.codes import can_quantise
from dualform.query.search.scan import ProductScorer
from dualform.query.search.screen import Request, Screen
from dualform.query.search.screen_searcher import request_of
from dualform.query.search.searcher import Ranked, Search


def directed_best(search: Search, values: DirectedValues, queries: NDArray[np.float32]) -> list[Ranked]:
    """By query, the best entries of float32[n, d], group after group. `search` is among the entries of `values`."""
    found: dict[int, Ranked] = {}
    screen: Screen | None = getattr(search.view.backend, "screen", None)
    request = None if screen is None or not screen.weighs else request_of(search, screen, absolute=False)
    if screen is not None and request is not None:
        able = np.flatnonzero(can_quantise(queries))
        size = min(request.batch, most_queries(values))
        for start in range(0, len(able), size):
            batch = able[start : start + size]
            found.update(_screened(search, values, queries, batch, screen, request))
    left = [query for query in range(len(queries)) if query not in found]
    found.update(zip(left, _scanned(search, values, queries, left), strict=True))
    search.view.tally.add(queries=len(queries), fallbacks=0 if request is None else len(left))
    return [found[query] for query in range(len(queries))]


def _screened(
    search: Search,
    values: DirectedValues,
    queries: NDArray[np.float32],
    batch: NDArray[np.int64],
    screen: Screen,
    request: Request,
) -> dict[int, Ranked]:
    """Of some of the queries, int64[n], those that the screen can decide."""
    rows, own = search.rows, queries[batch]
    factors = row_factors(search, values, batch, screen.codes)
    if factors is None:
        return {}
    near = screen.candidates(rows.keys, own, replace(request, factors=factors), search.check, rows.norms)
    search.check()
    scores = score_pairs(rows.keys, near.rows, near.query, own, search.check)
    search.view.tally.add(candidates=len(scores))
    entries, index = rows.entries_of(near.rows)
    query = near.query[index]
    scores = scores[index] * values.of_entries(batch[query], entries, search.check) + 0.0  # -0.0 becomes 0.0
    cells = query * request.groups + (0 if request.group is None else request.group[near.rows[index]])
    kept = best_of_cells(cells, scores, entries, search.k)
    entries, cells, scores = entries[kept], cells[kept], scores[kept]
    cuts = np.searchsorted(cells, np.arange(len(batch) + 1) * request.groups)
    return {
        number: (entries[cuts[i] : cuts[i + 1]], scores[cuts[i] : cuts[i + 1]])
        for i, number in enumerate(batch.tolist())
        if not near.crowded[i]
    }


def _scanned(search: Search, values: DirectedValues, queries: NDArray[np.float32], left: Sequence[int]) -> list[Ranked]:
    """Of the queries with these numbers."""
    if not left:
        return []
    if search.groups is None:
        groups = group_entries(search.view, values.layer, values.selection, (), search.check)
        search = replace(search, groups=groups)
    score = Dot()
    return best_of_groups(
        search,
        queries[left],
        lambda own, some: ProductScorer.of(own, some, score),
        lambda query: values.of(left[query], search.check),
    )
