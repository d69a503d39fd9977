"""A question about one layer, resolved against one snapshot: its layer, queries, mask and groups.

Shapes: n queries, d_in of the layer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Scan, Status
from dualform.errors import BadInput
from dualform.query.bounds import COUNT_BYTES, HIT_BYTES, RANK_BYTES, SUM_BYTES
from dualform.query.groups import Groups, group_entries
from dualform.query.score import algebra
from dualform.query.slots import vectors
from dualform.query.view import Check, View, never
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import (
    Contribution,
    Distribution,
    GroupSum,
    Output,
    Placebo,
    TopK,
)
from dualform.store.layer import Layer

if TYPE_CHECKING:
    from dualform.query.directed import DirectedValues
    from dualform.query.weights.group_weights import SlotShares

Q = TypeVar("Q", TopK, GroupSum, Distribution, Output, Contribution, Placebo)


@dataclass(frozen=True, eq=False)
class Resolved(Generic[Q]):
    """All that answering needs besides the keys. Within a layer, slots are numbered by its entries."""

    question: Q
    view: View
    layer: Layer
    queries: NDArray[np.float32]
    """float32[n, d_in], finite."""
    selection: Selection
    """The entries that the mask leaves, at least one; of contributions, those whose gradient an update used."""
    groups: Groups | None
    """None if the question has no `by`."""
    directed: DirectedValues | None = None
    """Of a question about contributions along a direction: what the slots' values are worth there, under a rule that
    gives each slot one coefficient."""
    shares: SlotShares | None = None
    """Of such a question, under a rule that moves each number of a weight on its own, as Adam. If both are None, only
    groups have contributions."""
    began: float = field(default_factory=time.perf_counter)
    """When the question arrived, in seconds of time.perf_counter()."""

    @property
    def score(self) -> algebra.Score:
        """Raises BadInput where the question's score is unknown."""
        assert isinstance(self.question, TopK | GroupSum | Distribution), "others have no score"
        return algebra.named(self.question.score)

    @property
    def status(self) -> Status | None:
        """Of the record, where the question is about contributions along a direction."""
        found = self.directed or self.shares
        return None if found is None else found.status

    def scan(self) -> Scan:
        """What answering has taken so far."""
        slots, matching, space = len(self.selection.stays), self.selection.count, self.layer.space
        if isinstance(self.question, Output | Contribution | Placebo):
            return self.view.scan(self.began, slots, matching, space=space, at_step=self.question.at_step)
        target = self.question.target
        at_step = None if target is None else target.at_step
        return self.view.scan(self.began, slots, matching, self.view.backend.name, space, at_step)


def resolve(view: View, question: Q, check: Check = never) -> Resolved[Q]:
    """Raises NotFound, BadInput, BadMask or EmptyMask, naming what is wrong with the question; and as `check`."""
    began = time.perf_counter()
    assert question.layer is not None, "the engine names it"
    layer = view.snapshot.layer(question.layer)
    _require_one(layer, question)
    queries = vectors(view, layer, question.queries)
    selection = mask.require_entries(mask.selection(view, layer, question.where, check), question.where, view.datasets)
    directed, shares = None, None
    if isinstance(question, TopK | GroupSum | Distribution) and question.target is not None:
        from dualform.query.directed import directed_values  # scores of keys need none of it
        from dualform.query.weights.coefficients import weighs_no_slot
        from dualform.query.weights.group_weights import SlotShares, why_no_slot_shares
        from dualform.query.weights.slot_products import WithoutValues

        target = question.target
        try:
            directed = directed_values(view, layer, selection, target, len(queries), check)
            selection = directed.selection
        except WithoutValues as refused:
            if not (why := why_no_slot_shares(view, layer)):
                shares = SlotShares.of(view, layer, selection, target.at_step, target.allow_inexact, check)
                selection = shares.selection
            elif not isinstance(question, GroupSum):
                if weighs_no_slot(view.snapshot, layer.stored.parameters) is None:
                    raise
                message = f"{refused.message.removesuffix('.')}, and {why}."
                raise WithoutValues(message, hint=refused.hint, field=refused.field) from None
    groups = _groups(view, layer, question, len(queries), selection, check)
    return Resolved(question, view, layer, queries, selection, groups, directed, shares, began)


def _groups(
    view: View,
    layer: Layer,
    question: TopK | GroupSum | Distribution | Output | Contribution | Placebo,
    queries: int,
    selection: Selection,
    check: Check,
) -> Groups | None:
    """The groups of a question, None of one without `by`. Raises BadInput where the answer would be too large."""
    if isinstance(question, Output):
        bytes_each = 4 * layer.d_out + (8 if question.kernel == "softmax" else 0)
        view.bounds.require(queries, bytes_each, "Ask with at most {} queries at a time.", "queries")
        return None
    if isinstance(question, Placebo):
        bytes_each = 2 * SUM_BYTES * (3 + 2 * question.n)
        view.bounds.require(queries, bytes_each, "Ask with at most {} queries at a time, or a smaller n.", "n")
        return None
    if isinstance(question, Distribution):
        bytes_each = RANK_BYTES * min(question.points, selection.count) + 2 * SUM_BYTES
        view.bounds.require(queries, bytes_each, "Ask with at most {} queries at a time, or fewer points.", "points")
        return None
    most = view.bounds.answer_bytes
    if isinstance(question, Contribution):
        bytes_each = SUM_BYTES * layer.d_out * queries
        return group_entries(view, layer, selection, question.by, check, most // max(1, bytes_each) - 3)
    if isinstance(question, GroupSum):
        if question.k is None:
            return group_entries(view, layer, selection, question.by, check, most // (SUM_BYTES * (queries + 1)))
        found = group_entries(view, layer, selection, question.by, check)
        bytes_each = 3 * SUM_BYTES * min(question.k, len(found.counts))  # of the sums, which groups, and their slots
        view.bounds.require(queries, bytes_each, "Ask with at most {} queries at a time, or a smaller k.", "k")
        return found
    groups, there = None, np.array([selection.count])
    if question.by:
        least = (COUNT_BYTES + HIT_BYTES) * queries  # a group has at least one slot
        groups = group_entries(view, layer, selection, question.by, check, most // least)
        there = groups.counts
    bytes_each = COUNT_BYTES * len(there) + HIT_BYTES * int(np.minimum(there, question.k).sum())
    view.bounds.require(queries, bytes_each, "Ask with at most {} queries at a time, or a smaller k.", "k")
    return groups


def _require_one(layer: Layer, question: TopK | GroupSum | Distribution | Output | Contribution | Placebo) -> None:
    """Raises BadInput for scores of a layer that is several: none of its outputs attends by all columns of its keys."""
    linear = isinstance(question, Contribution | Placebo) or (
        isinstance(question, Output) and question.kernel == "linear"
    )
    if layer.groups > 1 and not linear:
        first, *_, last = layer.view_names
        raise BadInput(
            f"Layer {layer.name!r} has {layer.groups} groups of channels, which are queried one at a time.",
            hint=f"Pass layer={first!r} … {last!r}.",
            field="layer",
        )
