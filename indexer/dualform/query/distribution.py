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
from dualform.query.score.algebra import DOT
from dualform.query.score.canonical import as_float32, score_every
from dualform.query.score.key_rows import key_rows
from dualform.query.search.scan import Search
from dualform.query.sums.grouping import BATCH
from dualform.query.view import Check
from dualform.questions import Distribution

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
    return _exact_scores(resolved, check)


def _exact_scores(resolved: Resolved[Distribution], check: Check) -> Iterator[NDArray[np.float64]]:
    view, layer, selection, queries = resolved.view, resolved.layer, resolved.selection, resolved.queries
    score = DOT if resolved.directed is not None else resolved.score
    # What no text describes, as entries that an update used, no other process can make the same selection of.
    shards = view.shards if selection.source is not None and not score.weighted else None
    own, index = selection.entries, None
    if shards is None:
        rows = key_rows(view, layer.name, selection, check)
        weights = resolved.directed or score.weights(view, layer.name, rows, queries)
        search = Search(view, layer.name, rows, None, selection.count, queries, score.absolute, weights, check)
        if rows.keys.row_of_entry is not None:
            own, index = np.unique(rows.rows_of(own), return_inverse=True)
    for start in range(0, len(queries), BATCH):
        batch = queries[start : start + BATCH]
        if shards is None:
            products = score_every(rows.keys, own, batch, check)
        else:
            products = shards.scores(layer, selection, own, batch, check)
        for query, scores in enumerate(products, start):
            if shards is not None:
                found = np.abs(scores) if score.absolute else scores
            elif search.by_row:
                found = search.exact(scores, query, own)
                found = found if index is None else found[index]
            else:
                found = search.exact(scores if index is None else scores[index], query, None)
            # A copy: whoever has it does not hold the products of a batch beside those of the next.
            yield np.sort(found)
        del products, scores, found
