"""The answer to GroupSum: the sum of each group's scores."""

from __future__ import annotations

from dualform.answers import GroupSums
from dualform.query.resolved import Resolved
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check
from dualform.questions import GroupSum


def group_sum(resolved: Resolved[GroupSum], check: Check) -> GroupSums:
    """Raises BadInput where the score is unknown, Inexact where a key is not finite."""
    check()  # a cached answer takes no time, but nobody should get one after giving up
    groups, layer = resolved.groups, resolved.layer
    assert groups is not None, "a GroupSum has columns to group by"
    sums = resolved.score.sums(Grouping(resolved.view, layer, groups, resolved.selection, check), resolved.queries)
    return GroupSums(groups.keys, sums, groups.counts, groups.by, resolved.scan(), layer.space)
