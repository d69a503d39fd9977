"""The answer to Distribution: the scores of every slot that a mask leaves, by rank and in sum.

Shapes: n queries, m entries that have a rank, r ranks that are asked for, c rows that keys or shards have of them.

Nothing can be left out of a sum of absolute values that decides its last bits, so every entry is scored canonically. Of
scores that are equal no order can be told, so that sorting them by size alone gives what each rank has; sums then run
over the ranks, one after the other, in float64. So an answer depends on nothing but the scores: not on the batch, the
backend, or the number of threads and shards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Distributions
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32, score_every
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.score.kinds import Dot, Kind, ProductKind
from dualform.query.search.scan import Scorer, Search
from dualform.query.search.screen import ScanSearcher
from dualform.query.sums.grouping import BATCH
from dualform.query.view import Check
from dualform.questions import Distribution

_BLOCK = 1 << 16
"""Rows that are scored at once."""
_EACH = 10
"""Ranks from the first on, of which each is given."""


def distributions(resolved: Resolved[Distribution], check: Check) -> Distributions:
    """Raises BadInput where the score is unknown, Inexact where a key is not finite."""
    check()
    queries, count = len(resolved.queries), resolved.selection.count
    ranks = ranks_of(count, resolved.question.points)
    scores, cumulative = np.empty((queries, len(ranks)), np.float32), np.empty((queries, len(ranks)))
    totals, effective = np.empty(queries), np.empty(queries)
    for query, ascending in enumerate(_sorted_scores(resolved, check)):
        check()
        ranked = ascending[::-1]
        sizes = np.abs(ranked)
        sums = np.cumsum(sizes)
        scores[query], cumulative[query] = as_float32(ranked[ranks - 1]), sums[ranks - 1]
        totals[query], effective[query] = sums[-1], effective_slots(sizes)
    return Distributions(
        ranks, scores, cumulative, totals, effective, count, resolved.scan(), resolved.layer.space, resolved.status
    )


def ranks_of(count: int, points: int) -> NDArray[np.int64]:
    """int64[r]: at most `points` (11 or more) of the ranks 1 to `count`, evenly on a logarithmic axis: each of the
    first ten, the last, and all where there are no more.
    """
    if count <= points:
        return np.arange(1, count + 1, dtype=np.int64)
    later = np.rint(np.geomspace(_EACH, count, points - _EACH + 1)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(1, _EACH + 1), later]))


def effective_slots(sizes: NDArray[np.float64]) -> float:
    """(sum |s|)^2 / sum s^2 of absolute scores float64[m], added in their order; 0.0 where all are 0."""
    largest = float(sizes.max())
    if largest == 0:
        return 0.0
    # Times a power of two, which rounds nothing that matters: a square of what is tiny or huge would leave float64.
    scaled = np.ldexp(sizes, -int(np.frexp(largest)[1]))
    total = np.cumsum(scaled)[-1]
    return float(total * total / np.cumsum(np.square(scaled))[-1])


def _sorted_scores(resolved: Resolved[Distribution], check: Check) -> Iterator[NDArray[np.float64]]:
    """By query, float64[m]: the canonical scores of all entries, ascending."""
    if resolved.shares is not None:
        from dualform.query.weights.group_weights import every_share  # scores of keys need none of it

        return map(np.sort, every_share(resolved, 0, len(resolved.queries), check))
    kind: Kind = resolved.score if resolved.directed is None else Dot()
    if isinstance(kind, ProductKind):
        return _product_scores(resolved, kind, check)
    return _other_scores(resolved, kind, check)


def _product_scores(resolved: Resolved[Distribution], kind: ProductKind, check: Check) -> Iterator[NDArray[np.float64]]:
    """Of a score that follows from the inner product, times what a slot's value is worth where it has a direction."""
    view, layer, selection, values = resolved.view, resolved.layer, resolved.selection, resolved.directed
    # What no text describes, as entries that an update used, no other process can make the same selection of.
    shards = view.shards if selection.source is not None else None
    own, index = selection.entries, None
    if shards is None:
        rows = key_rows(view, layer.name, selection, check)
        own, index = _own_rows(rows, own)
    for start in range(0, len(resolved.queries), BATCH):
        batch = resolved.queries[start : start + BATCH]
        if shards is None:
            products = score_every(rows.keys, own, batch, check)
        else:
            products = shards.scores(layer, selection, own, batch, check)
        for query, scores in enumerate(kind.of(products), start):
            every = scores if index is None else scores[index]
            # A copy: whoever has it does not hold the products of a batch beside those of the next.
            yield np.sort(every if values is None else every * values.of(query, check) + 0.0)  # -0.0 becomes 0.0
        del products, scores, every


def _own_rows(rows: KeyRows, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """int64[c]: the stored rows of some entries; and int64[m]: which of them each has, None where each has its own."""
    if rows.keys.row_of_entry is None:
        return entries, None
    own, index = np.unique(rows.rows_of(entries), return_inverse=True)
    return own, index


def _other_scores(resolved: Resolved[Distribution], kind: Kind, check: Check) -> Iterator[NDArray[np.float64]]:
    """Of a score that depends on more: what the scan ranks by, or what another searcher finds where all entries are
    asked for.
    """
    view, layer, selection, queries = resolved.view, resolved.layer, resolved.selection, resolved.queries
    rows = key_rows(view, layer.name, selection, check)
    search = Search(view, layer.name, rows, None, selection.count, check)
    searcher = kind.searchers(view.backend)[-1]  # which decides every query
    own, index = _own_rows(rows, selection.entries)
    for start in range(len(queries)):
        query = queries[start : start + 1]
        if isinstance(searcher, ScanSearcher):
            scores = _scanned(searcher.scorer(search, query), own, check)
            yield np.sort(scores if index is None else scores[index])
        else:
            (found,) = searcher.find(search, query)
            assert found is not None, "the last searcher decides every query"
            yield np.sort(found[1])


def _scanned(scorer: Scorer, rows: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
    """float64[c]: the canonical scores of some rows with the scorer's first query."""
    scores = np.empty(len(rows))
    for first in range(0, len(rows), _BLOCK):
        check()
        part = slice(first, first + _BLOCK)
        scores[part] = scorer.canonical(rows[part], 0)
    return scores
