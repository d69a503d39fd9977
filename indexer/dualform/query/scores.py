"""Answers about attention weights: the best slots, and sums by group."""

from __future__ import annotations

import numpy as np

from dualform.answers import GroupSums, Hits
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.ranking import Ranking
from dualform.query.sums.group_sum import absolute_sums, signed_sums
from dualform.query.view import Check
from dualform.questions import GroupSum, TopK


def top_k(asked: Resolved[TopK], check: Check) -> Hits:
    """The k best slots of each query, or of each group."""
    view, layer, k, groups = asked.view, asked.layer, asked.question.k, asked.groups
    rows = key_rows(view, layer.name, asked.selection, check)
    ranked = Ranking(view, layer.name, rows, groups, k, asked.absolute, check).of(asked.queries)
    there = np.array([asked.selection.count]) if groups is None else groups.counts
    counts = np.tile(np.minimum(there, k), (len(ranked), 1))
    ids = view.slots_of(layer, np.concatenate([entries for entries, _ in ranked]).astype(np.int64))
    scores = as_float32(np.concatenate([scores for _, scores in ranked]))
    keys, by = (None, ()) if groups is None else (groups.keys, groups.by)
    return Hits(ids, scores, counts, keys, by, asked.scan(), layer.space)


def group_sum(asked: Resolved[GroupSum], check: Check) -> GroupSums:
    """The sum of each group's scores."""
    check()  # what is kept is answered at once, but not to someone who has gone
    groups = asked.groups
    assert groups is not None, "a GroupSum has columns to group by"
    add = absolute_sums if asked.absolute else signed_sums
    sums = add(asked.view, asked.layer.name, groups, asked.selection, asked.queries, check)
    return GroupSums(groups.keys, sums, groups.counts, groups.by, asked.scan(), asked.layer.space)
