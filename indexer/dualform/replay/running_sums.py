"""The summed attention weight of each group, over the windows seen so far.

Shapes: n queries, G groups, d dimensions.

Signed sums have the bits of a stored memory's: windows begin where a block of key sums does, and where there are so
many groups that scores are added instead (group_sum.py), they are added in slot order on top of what is there. Absolute
sums add the canonical scores' absolute values in slot order, as a stored memory does where there are so many groups;
elsewhere it may add float32 scores, so the two may differ by what it allows itself, 1e-6 relative. Where neither keys
nor query change sign, both take the absolute value of the signed sum, and have the same bits again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Scan
from dualform.query.resolved import Resolved
from dualform.query.score.rescoring import score_every, score_rows
from dualform.query.sums.group_sum import many
from dualform.query.sums.key_sums import KeySummer
from dualform.questions import GroupSum
from dualform.replay.window import Window, never

_BATCH = 16
"""Queries whose scores of a window are held at once."""


class RunningSums:
    def __init__(self, asked: Resolved[GroupSum]) -> None:
        assert asked.groups is not None
        self.asked, self._groups = asked, asked.groups
        count, width = len(asked.groups.counts), asked.layer.d_in
        self._keys = None if many(width, count) else KeySummer(count, width)
        self._sums = np.zeros((len(asked.queries), count)) if self._keys is None or asked.absolute else None
        self.seconds = 0.0

    def add(self, window: Window) -> None:
        entries, numbers = window.members(self._groups)
        if not len(entries):
            return
        if self._keys is not None:
            self._keys.add(window.keys, entries, numbers, never)
        if self._sums is None:
            return
        for start in range(0, len(self._sums), _BATCH):
            batch = slice(start, start + _BATCH)
            scores = score_every(window.keys, entries, self.asked.queries[batch], never)
            for own, score in zip(self._sums[batch], scores, strict=True):
                # One after the other, as a sum over all slots at once would add them.
                np.add.at(own, numbers, np.abs(score, out=score) if self.asked.absolute else score)

    def answer(self, scan: Scan) -> GroupSums:
        scan = replace(scan, slots_matching=self.asked.selection.count, seconds=self.seconds)
        return GroupSums(
            self._groups.keys, self._added(), self._groups.counts, self._groups.by, scan, self.asked.layer.space
        )

    def _added(self) -> NDArray[np.float64]:
        if self._keys is None:
            assert self._sums is not None
            return self._sums
        queries, known = self.asked.queries, self._keys.sums()
        signed = score_rows(known.sums, queries)
        if self._sums is None:
            return signed
        one_sign = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
        return np.where(one_sign[:, None] & known.one_sign, np.abs(signed), self._sums)
