"""The answer to TopK: the k best slots of each query, or of each group, whichever searcher finds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Hits
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.searcher import Ranked, Search, Searcher
from dualform.query.view import Check
from dualform.questions import TopK


def top_k(resolved: Resolved[TopK], check: Check) -> Hits:
    """Raises BadInput where the score is unknown, Inexact where a key is not finite."""
    view, layer, k, groups = resolved.view, resolved.layer, resolved.question.k, resolved.groups
    if resolved.shares is not None:
        from dualform.query.weights.slot_shares import best_of_shares  # scores of keys need none of it

        found = best_of_shares(resolved, check)
    elif view.shards is not None and resolved.directed is None:
        found = view.shards.best(resolved, check)
    else:
        rows = key_rows(view, layer.name, resolved.selection, check)
        search = Search(view, layer.name, rows, groups, k, check)
        found = _found(resolved, search)
    there = np.array([resolved.selection.count]) if groups is None else groups.counts
    counts = np.tile(np.minimum(there, k), (len(found), 1))
    entries = np.concatenate([entries for entries, _ in found]).astype(np.int64)
    scores = as_float32(np.concatenate([scores for _, scores in found]))
    keys, by = (None, ()) if groups is None else (groups.keys, groups.by)
    ids = view.snapshot.entries(layer.name).slots_of(entries)
    return Hits(ids, scores, counts, keys, by, resolved.scan(), layer.space, resolved.status)


def _found(resolved: Resolved[TopK], search: Search) -> list[Ranked]:
    """By query, group after group, of rows that this process reads."""
    if resolved.directed is None:
        return best(search, resolved.score.searchers(search.view.backend), resolved.queries)
    from dualform.query.directed.directed_best import directed_best  # scores of keys need none of it

    return directed_best(search, resolved.directed, resolved.queries)


def best(search: Search, searchers: Sequence[Searcher], queries: NDArray[np.float32]) -> list[Ranked]:
    """The best entries of each of float32[n, d], group after group. A group with fewer than k gives all it has.

    A searcher is asked with the queries that those before it could not decide; the last one decides every query.
    """
    found: dict[int, Ranked] = {}
    left, fallbacks = list(range(len(queries))), 0
    for number, searcher in enumerate(searchers):
        ranked = searcher.find(search, queries[left]) if left else []
        fallbacks = len(left) if number else 0
        found.update({i: one for i, one in zip(left, ranked, strict=True) if one is not None})
        left = [i for i in left if i not in found]
    search.view.tally.add(queries=len(queries), fallbacks=fallbacks)
    return [found[i] for i in range(len(queries))]
