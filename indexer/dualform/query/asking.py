"""One question on its way to its answer: checked, resolved, scanned, timed."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits, Scan
from dualform.query import resolve
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.ranking import Ranking
from dualform.query.sums import group_sum
from dualform.query.view import Check, View
from dualform.query.weights.output import outputs
from dualform.query.weights.rebuilt import rebuild
from dualform.query.where.mask import Selection
from dualform.questions import GroupSum, Output, TopK


class Asking:
    """A question, with its layer, queries and mask resolved against one snapshot."""

    def __init__(self, view: View, question: TopK | GroupSum | Output, check: Check) -> None:
        self._began = time.perf_counter()
        self._view, self._check = view, check
        self._layer = view.layer(question.layer)
        self._queries = resolve.vectors(view, self._layer, question.queries)
        self._selection: Selection = view.selection(self._layer.space, question.where)

    def top_k(self, question: TopK) -> Hits:
        view, absolute, check = self._view, question.score == "abs", self._check
        groups = view.groups(self._layer.space, self._selection, question.by) if question.by else None
        rows = key_rows(view, self._layer.name, self._selection, check)
        ranked = Ranking(view, self._layer.name, rows, groups, question.k, absolute, check).of(self._queries)
        there = np.array([self._selection.count]) if groups is None else groups.counts
        counts = np.tile(np.minimum(there, question.k), (len(ranked), 1))
        ids = np.concatenate([slots for slots, _ in ranked]).astype(np.int64)
        scores = as_float32(np.concatenate([scores for _, scores in ranked]))
        return Hits(ids, scores, counts, None if groups is None else groups.keys, question.by, self._scan())

    def group_sum(self, question: GroupSum) -> GroupSums:
        view, selection, check, layer = self._view, self._selection, self._check, self._layer.name
        check()  # what is kept is answered at once, but not to someone who has gone
        groups = view.groups(self._layer.space, selection, question.by)
        add = group_sum.signed_sums if question.score == "signed" else group_sum.absolute_sums
        sums = add(view, layer, groups, selection, self._queries, check)
        return GroupSums(groups.keys, sums, groups.counts, question.by, self._scan())

    def output(self, question: Output) -> tuple[NDArray[np.float32], Scan]:
        weights = rebuild(self._view, self._layer, self._selection, question.at_step, False, self._check)
        return outputs(weights, self._queries, self._check), self._scan()

    def _scan(self) -> Scan:
        return Scan(
            snapshot=self._view.snapshot.commits,
            slots_scanned=self._view.count(self._layer.space),
            slots_matching=self._selection.count,
            backend=self._view.backend.name,
            seconds=time.perf_counter() - self._began,
        )
