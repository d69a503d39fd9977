"""What each group of slots brought to a layer's output: the sum of equation 13, group by group.

    y  =  a_0 W_0 q  +  b  +  sum over groups g of M_g q        M_g  =  sum over the slots t of g of e_t x_t^T

Shapes: n queries, G groups, d_in, d_out.

A group is a mask: M_g are the weights that its slots alone leave, less what no slot brought, whatever rule made them.
So a group has what `output` gives under that mask without the initial weights, and layers that share a parameter are
grouped by columns of the sample, as they are masked. What is left of the output, in float64 and canonical like all
terms, is the residual: M_g are added up group by group, and the weights slot by slot. Both are of the record; how far
that is from the network's own output is another number, what is unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Contributions, GroupKey
from dualform.errors import BadInput
from dualform.query.groups import dense, group_entries, joined_keys
from dualform.query.needs import GROUPS
from dualform.query.resolved import Resolved
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import weighs_no_slot
from dualform.query.weights.group_weights import (
    Numbers,
    group_weights,
    kept_group_weights,
    sums_of_shares,
    why_no_slot_shares,
)
from dualform.query.weights.output import left_out, own_sums, products, rebuilt_under
from dualform.query.weights.reconstruction import (
    RebuiltWeights,
    before_the_record,
    missed_by_the_record,
    rebuild_without_slots,
    tied,
)
from dualform.query.weights.trajectory import Selections
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import Contribution
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer

_MOST_WORK = 5e10
"""Numbers of groups' weights that are moved, over all updates: some ten minutes on one core."""
_PRODUCTS, _UPDATES = 4, 8
"""What a pass takes for each slot, and for each group and update, in products of a slot's key with factors."""


def contributions(resolved: Resolved[Contribution], check: Check) -> Contributions:
    """Raises Inexact as `require` says, and BadInput for groups that would take far too long."""
    question, view, layer, queries = resolved.question, resolved.view, resolved.layer, resolved.queries
    at_step, inexact, stored = question.at_step, question.allow_inexact, resolved.layer.stored

    def answered(weights: RebuiltWeights) -> NDArray[np.float64]:
        return products(weights.of(layer), queries, check, layer.groups)

    selections = {stored.name: resolved.selection, **tied(view, stored, question.where, check)}
    whole = rebuilt_under(view, stored, selections, at_step, inexact, check)
    grouped = _grouped(resolved, selections, check)
    sums = _sums(resolved, grouped, check)
    initial = answered(before_the_record(view, stored, at_step, check))
    unrecorded_change = answered(rebuild_without_slots(view, stored, at_step, inexact, check)) - initial
    residual = answered(whole) - (sums.sum(axis=1) + initial + unrecorded_change)
    bias = whole.of(layer).bias
    return Contributions(
        grouped.keys,
        sums,
        grouped.counts,
        initial,
        np.zeros(layer.d_out) if bias is None else bias,
        unrecorded_change,
        residual,
        _unexplained(resolved, answered, check),
        question.by,
        layer.space,
        whole.status,
        resolved.scan(),
    )


def _unexplained(
    resolved: Resolved[Contribution], answered: Callable[[RebuiltWeights], NDArray[np.float64]], check: Check
) -> NDArray[np.float64] | None:
    """The network's own output at its end, less what the record of all slots makes of it, the bias too."""
    view, layer, at_step = resolved.view, resolved.layer, resolved.question.at_step
    if at_step not in (None, view.snapshot.steps):
        return None
    missed = missed_by_the_record(view, layer.stored, check)
    if missed is None:
        return None
    bias = missed.of(layer).bias
    return answered(missed) + (0.0 if bias is None else bias)


@dataclass(frozen=True, eq=False)
class _Grouped:
    """All groups that an entry of the layer is in, or one of a layer that shares a parameter."""

    keys: tuple[GroupKey, ...]
    counts: NDArray[np.int64]
    """int64[G]: of the layer's own entries."""
    numbers: Numbers
    """The groups of entries; G for those that the filter leaves out."""


def _grouped(resolved: Resolved[Contribution], selections: Selections, check: Check) -> _Grouped:
    question, view, layer, own = resolved.question, resolved.view, resolved.layer, resolved.groups
    assert own is not None, "a Contribution has columns to group by"
    grouped = {layer.stored.name: own}
    for name, selection in selections.items():
        if name == layer.stored.name:
            continue
        other = view.snapshot.layer(name)
        _require_columns_of_samples(view, layer, other, question.by)
        grouped[name] = group_entries(view, other, selection, question.by, check)
    keys, places = joined_keys({name: groups.keys for name, groups in grouped.items()})
    numbers = {name: np.full(len(selection.stays), len(keys)) for name, selection in selections.items()}
    for name, groups in grouped.items():
        numbers[name][groups.entries] = places[name][groups.numbers]
    counts = np.zeros(len(keys), dtype=np.int64)
    counts[places[layer.stored.name]] = own.counts
    return _Grouped(keys, counts, numbers)


def _require_columns_of_samples(view: View, layer: Layer, other: Layer, by: Sequence[str]) -> None:
    spaces = [view.snapshot.space(one.space) for one in (layer, other)]
    if layer.space != other.space and not all(space.sample_columns.issuperset(by) for space in spaces):
        raise BadInput(
            f"Layer {layer.name!r} shares a parameter with layer {other.name!r}, whose slots are of space "
            f"{other.space!r}.",
            hint='Group only by columns of the sample, such as by="label".',
            field="by",
        )


def _sums(resolved: Resolved[Contribution], grouped: _Grouped, check: Check) -> Doubles:
    """float64[n, G, d_out]. Slot by slot where a slot has a share and that is less work; else in passes over the
    training, each with as many groups as have room.
    """
    view, layer, queries = resolved.view, resolved.layer, resolved.queries
    stored, groups = layer.stored, len(grouped.keys)
    slots = resolved.selection.count
    few = len(queries) * slots <= _PRODUCTS * slots + _UPDATES * groups * view.snapshot.steps
    if few and weighs_no_slot(view.snapshot, stored.weights) is not None and not why_no_slot_shares(view, layer):
        own = grouped.numbers[stored.name][resolved.selection.entries]
        return sums_of_shares(resolved, own, groups, check)
    each = stored.d_out * stored.weight_width
    linear = weighs_no_slot(view.snapshot, stored.parameters) is None
    if not linear and groups * each * view.snapshot.steps > _MOST_WORK:
        raise BadInput(
            f"{groups:,} groups of layer {layer.name!r} would take hours: each is {each:,} weights that are run again "
            f"over {view.snapshot.steps:,} steps.",
            hint='Group by a column with fewer values, such as by="dataset", or keep some with where=, such as '
            'where="label < 10".',
            field="by",
        )
    found = _of_all_slots(resolved, grouped, check)
    return _of_groups(resolved, resolved.selection, grouped.numbers, groups, check) if found is None else found


def _of_all_slots(resolved: Resolved[Contribution], grouped: _Grouped, check: Check) -> Doubles | None:
    """float64[n, G, d_out]: the groups of all slots, less what the mask leaves out of those that it parts. None if that
    is more work than to sum what stays, or loses digits.
    """
    view, stored, question, kept = resolved.view, resolved.layer.stored, resolved.question, resolved.selection
    every = mask.selection(view, stored, None, check)
    if every.count > 2 * kept.count or not own_sums(view, stored, check):
        return None
    whole = group_entries(view, stored, every, question.by, check)
    if len(whole.keys) > 2 * len(grouped.keys):
        return None
    place = np.empty(len(grouped.keys), dtype=np.int64)
    place[grouped.numbers[stored.name][kept.entries]] = whole.numbers[kept.entries]
    parted = np.zeros(len(whole.keys), dtype=bool)
    parted[place] = grouped.counts < whole.counts[place]
    gone = left_out(view, stored, kept, question.at_step, check) if parted.any() else None
    if parted.any() and gone is None:
        return None
    found = _of_groups(resolved, every, {stored.name: whole.numbers}, len(whole.keys), check)
    if gone is not None:
        entries = gone.entries[parted[whole.numbers[gone.entries]]]
        fewer, numbers = dense(whole.numbers[entries], len(whole.keys), check)
        of_gone = np.full(len(whole.numbers), len(fewer))
        of_gone[entries] = numbers
        found[:, fewer] -= _of_groups(resolved, gone, {stored.name: of_gone}, len(fewer), check)
    return found[:, place]


def _of_groups(
    resolved: Resolved[Contribution], selection: Selection, numbers: Numbers, groups: int, check: Check
) -> Doubles:
    """float64[n, groups, d_out]: what the groups of some slots brought."""
    view, layer, queries, at_step = resolved.view, resolved.layer, resolved.queries, resolved.question.at_step
    stored = layer.stored
    found = np.empty((len(queries), groups, layer.d_out))
    size = max(1, GROUPS // (6 * 8 * stored.d_out * (stored.weight_width + 1)) - 1)
    for first in range(0, groups, size):
        some = min(size, groups - first)

        def made(first: int = first, some: int = some) -> list[RebuiltWeights]:
            own = {
                name: np.where((of >= first) & (of < first + some), of - first, some) for name, of in numbers.items()
            }
            # Those of all slots are what every page begins with.
            make = kept_group_weights if bool(selection.stays.all()) else group_weights
            return make(view, stored, own, some, at_step, check)

        # Other queries of the same groups, as those of one page after another, need no pass over the slots.
        key = ("group weights", stored.name, resolved.question.by, selection.identity, at_step, first, some)
        for number, weights in enumerate(view.cache.get(key, made, check), first):
            found[:, number] = products(weights.of(layer), queries, check, layer.groups)
    return found
