"""The answer to GroupSum: the sum of each group's scores, of all groups or of those with the largest sums.

Shapes: n queries, G groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums
from dualform.answers.scores import largest
from dualform.query.resolved import Resolved
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check
from dualform.questions import GroupSum

LARGEST = 64 << 20
"""Bytes of sums of all groups that are held at once where only the largest are asked for."""


def group_sum(resolved: Resolved[GroupSum], check: Check) -> GroupSums:
    """Raises BadInput where the score is unknown, Inexact where a key is not finite."""
    check()  # a cached answer takes no time, but nobody should get one after giving up
    if resolved.question.target is not None and resolved.status is None:
        from dualform.query.directed import sums_of_group_weights  # scores of keys need none of it

        every = sums_of_group_weights(resolved, check)
        return every if resolved.question.k is None else every.of_largest(resolved.question.k)
    groups, layer, k, count = resolved.groups, resolved.layer, resolved.question.k, len(resolved.queries)
    assert groups is not None, "a GroupSum has columns to group by"
    numbers, total = None, None
    if k is None:
        sums = _sums(resolved, 0, count, check)
    else:
        total = len(groups.keys)
        size, best = max(1, LARGEST // (8 * total)), []
        for start in range(0, count, size):
            best.append(largest(_sums(resolved, start, min(start + size, count), check), k))
        sums, numbers = (np.concatenate(parts) for parts in zip(*best, strict=True))
    answer = GroupSums(
        groups.keys, sums, groups.counts, groups.by, resolved.scan(), layer.space, resolved.status, numbers, total
    )
    return answer.part(0, count)


def _sums(resolved: Resolved[GroupSum], start: int, stop: int, check: Check) -> NDArray[np.float64]:
    """float64[stop - start, G]: of some queries."""
    groups, values, queries = resolved.groups, resolved.directed, resolved.queries[start:stop]
    assert groups is not None, "a GroupSum has columns to group by"
    if resolved.shares is not None:
        from dualform.query.weights.group_weights import every_share  # scores of keys need none of it

        shares, count = every_share(resolved, start, stop, check), len(groups.counts)
        return np.stack([np.bincount(groups.numbers, own, minlength=count) for own in shares])
    grouping = Grouping(resolved.view, resolved.layer, groups, resolved.selection, check)
    if values is not None:
        from dualform.query.directed import directed_sums  # scores of keys need none of it

        return directed_sums(grouping, values, queries, start)
    return resolved.score.sums(grouping, queries)
