"""Sums of contributions by group.

Shapes: n queries, G groups, d dimensions of a key.

    sum_t v_t(u) (x_t . q)  =  (sum_t v_t(u) x_t) . q

Where all queries have one direction and groups are few, the right side: keys times the worth of their slots' values,
added as key_sums.py adds keys, are made once for all queries. Else the canonical contributions are added in slot order.

Where slots have no contributions of their own, as under Muon, a group still has weights, which the trajectory is run
again for: its sum is what they make of the query, along the direction (query/weights/contributions.py).
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums
from dualform.query.directed.directed_values import DirectedValues
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import canonical_scores
from dualform.query.score.rescoring import score_rows
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check
from dualform.query.weights.contributions import contributions
from dualform.questions import Contribution, GroupSum


def directed_sums(
    grouping: Grouping, values: DirectedValues, queries: NDArray[np.float32], first: int
) -> NDArray[np.float64]:
    """float64[n, G] of some queries, from the `first` of the question on. `grouping` is of the entries of `values`.

    Raises Inexact where a key or value is not finite.
    """
    check = grouping.check
    if grouping.many or not values.shared:
        return grouping.by_slot(queries, factors_of=lambda query: values.of(first + query, check))
    name = ("target", *astuple(values.target))
    return score_rows(grouping.scaled_key_sums(name, values.of(0, check)), queries)


def sums_of_group_weights(resolved: Resolved[GroupSum], check: Check) -> GroupSums:
    """Raises as `contributions`."""
    question = resolved.question
    target = question.target
    assert target is not None, "a contribution has a direction"
    at_step, inexact = target.at_step, target.allow_inexact
    asked = Contribution(question.layer, question.queries, question.by, question.where, at_step, inexact)
    view, layer, selection, groups = resolved.view, resolved.layer, resolved.selection, resolved.groups
    whole = Resolved(asked, view, layer, resolved.queries, selection, groups, began=resolved.began)
    found = contributions(whole, check)
    directions = target.rows(*found.initial.shape)
    sums = [canonical_scores(own, row) for own, row in zip(found.sums, directions, strict=True)]
    return GroupSums(found.groups, np.stack(sums), found.counts, found.by, resolved.scan(), found.space, found.status)
