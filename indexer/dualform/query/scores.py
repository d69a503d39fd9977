"""Answers about attention weights: the best slots, and sums by group."""

from __future__ import annotations

import numpy as np

from dualform.answers import GroupSums, Hits
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.ranking import Ranking
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check
from dualform.questions import GroupSum, TopK


def top_k(resolved: Resolved[TopK], check: Check) -> Hits:
    """The k best slots of each query, or of each group."""
    view, layer, k, groups, score = resolved.view, resolved.layer, resolved.question.k, resolved.groups, resolved.score
    rows = key_rows(view, layer.name, resolved.selection, check)
    ranked = Ranking(view, layer.name, rows, groups, k, score, check).of(resolved.queries)
    there = np.array([resolved.selection.count]) if groups is None else groups.counts
    counts = np.tile(np.minimum(there, k), (len(ranked), 1))
    ids = view.slots_of(layer, np.concatenate([entries for entries, _ in ranked]).astype(np.int64))
    scores = as_float32(np.concatenate([scores for _, scores in ranked]))
    keys, by = (None, ()) if groups is None else (groups.keys, groups.by)
    return Hits(ids, scores, counts, keys, by, resolved.scan(), layer.space)


def group_sum(resolved: Resolved[GroupSum], check: Check) -> GroupSums:
    """The sum of each group's scores."""
    check()  # a cached answer takes no time, but nobody should get one after giving up
    groups = resolved.groups
    assert groups is not None, "a GroupSum has columns to group by"
    grouping = Grouping(resolved.view, resolved.layer.name, groups, resolved.selection, check)
    sums = resolved.score.sums(grouping, resolved.queries)
    return GroupSums(groups.keys, sums, groups.counts, groups.by, resolved.scan(), resolved.layer.space)
