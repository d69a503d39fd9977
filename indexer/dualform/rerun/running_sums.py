"""The summed attention weight of each group, over the windows seen so far.

Shapes: n queries, G groups, d dimensions.

Sums of a linear score have the bits of a stored memory's: windows begin where a block of key sums does, and where there
are so many groups that scores are added instead (grouping.py), they are added in slot order to the sums so far. Sums of
any other score add the canonical scores in slot order. A stored memory adds absolute values of matrix products, in
float32 or, where there are so many groups, in float64, so that the two may differ by as much as it allows itself, 1e-6
relative. Where the sum of scores is the score of the sum of keys, both take that, and the bits are the same again.
A score that depends on more than the inner product makes its own sums of each window, and these are added.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Scan
from dualform.query.resolved import Resolved
from dualform.query.score.kinds import ProductKind
from dualform.query.score.rescoring import score_every, score_rows
from dualform.query.sums.grouping import Grouping, many
from dualform.query.sums.key_sums import KeySummer
from dualform.query.view import never
from dualform.questions import GroupSum
from dualform.rerun.window import Window

_BATCH = 16
"""Queries whose scores of a window are held at once."""


class RunningSums:
    def __init__(self, resolved: Resolved[GroupSum]) -> None:
        assert resolved.groups is not None
        self.resolved, self._groups = resolved, resolved.groups
        count, width = len(resolved.groups.counts), resolved.layer.d_in
        self._of_products = resolved.score if isinstance(resolved.score, ProductKind) else None
        """The score, if it follows from the inner product alone."""
        self._keys = None if self._of_products is None or many(width, count) else KeySummer(count, width)
        # Scores that are not linear may be needed one by one, and keys do not come twice.
        linear = self._of_products is not None and self._of_products.linear
        self._sums = None if linear and self._keys is not None else np.zeros((len(resolved.queries), count))
        self.seconds = 0.0

    def add(self, window: Window) -> None:
        entries, numbers = window.members(self._groups)
        if not len(entries):
            return
        if self._of_products is None:
            self._add_own(window)
            return
        if self._keys is not None:
            self._keys.add(window.keys, entries, numbers, never)
        if self._sums is None:
            return
        for start in range(0, len(self._sums), _BATCH):
            batch = slice(start, start + _BATCH)
            products = score_every(window.keys, entries, self.resolved.queries[batch], never)
            for own, scores in zip(self._sums[batch], self._of_products.of(products), strict=True):
                # One after the other, as a sum over all slots at once would add them.
                np.add.at(own, numbers, scores)

    def _add_own(self, window: Window) -> None:
        """What the score itself makes of the window's groups."""
        assert self._sums is not None
        groups, numbers = window.groups(self._groups)
        own = Grouping(window.view, window.layer, groups, window.selection(self.resolved.selection), never)
        self._sums[:, numbers] += self.resolved.score.sums(own, self.resolved.queries)

    def answer(self, scan: Scan) -> GroupSums:
        scan = replace(scan, slots_matching=self.resolved.selection.count, seconds=self.seconds)
        groups, k = self._groups, self.resolved.question.k
        found = GroupSums(groups.keys, self._added(), groups.counts, groups.by, scan, self.resolved.layer.space)
        return found if k is None else found.of_largest(k)

    def _added(self) -> NDArray[np.float64]:
        if self._keys is None or self._of_products is None:
            assert self._sums is not None
            return self._sums
        queries, known = self.resolved.queries, self._keys.sums()
        of_keys = score_rows(known.sums, queries)
        if self._sums is None:
            return of_keys
        return np.where(self._of_products.additive(known, queries), self._of_products.of(of_keys), self._sums)
