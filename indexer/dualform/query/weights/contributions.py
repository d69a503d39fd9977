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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Contributions, GroupKey
from dualform.errors import BadInput
from dualform.query.groups import Groups, group_entries, joined_keys
from dualform.query.resolved import Resolved
from dualform.query.view import Check, View
from dualform.query.weights.output import products
from dualform.query.weights.rebuilt_weights import (
    RebuiltWeights,
    before_the_record,
    missed_by_the_record,
    rebuild,
    rebuild_without_slots,
    recorded,
    recorded_without_slots,
    tied,
)
from dualform.query.where.mask import Selection
from dualform.questions import Contribution
from dualform.store.layer import Layer

BUDGET = 256 << 20
"""Bytes that the weights of all groups may take."""


def contributions(resolved: Resolved[Contribution], check: Check) -> Contributions:
    """Raises Inexact as `require` says, and BadInput for more groups than there is room for."""
    question, view, layer, queries = resolved.question, resolved.view, resolved.layer, resolved.queries
    at_step, inexact, stored = question.at_step, question.allow_inexact, resolved.layer.stored

    def answered(weights: RebuiltWeights) -> NDArray[np.float64]:
        return products(weights.of(layer), queries, check, layer.groups)

    partners = tied(view, stored, question.where, check)
    whole = rebuild(view, stored, resolved.selection, at_step, inexact, check, partners)
    groups = _groups(resolved, partners, check)
    sums = np.empty((len(queries), len(groups), layer.d_out))
    for number, weights in enumerate(_weights(view, stored, groups, at_step, check)):
        sums[:, number] = answered(weights)
    initial = answered(before_the_record(view, stored, at_step, check))
    unrecorded_change = answered(rebuild_without_slots(view, stored, at_step, inexact, check)) - initial
    residual = answered(whole) - (sums.sum(axis=1) + initial + unrecorded_change)
    bias = whole.of(layer).bias
    return Contributions(
        tuple(group.key for group in groups),
        sums,
        np.array([group.selection.count for group in groups], dtype=np.int64),
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
class _Group:
    key: GroupKey
    selection: Selection
    partners: Mapping[str, Selection]
    """By layer, its entries in those that share a parameter."""


def _groups(resolved: Resolved[Contribution], partners: Mapping[str, Selection], check: Check) -> list[_Group]:
    """All groups that an entry of the layer is in, or one of a layer that shares a parameter."""
    question, view, layer, own = resolved.question, resolved.view, resolved.layer, resolved.groups
    assert own is not None, "a Contribution has columns to group by"
    grouped, selections = {layer.name: own}, {layer.name: resolved.selection, **partners}
    for name, selection in partners.items():
        other = view.snapshot.layer(name)
        _require_columns_of_samples(view, layer, other, question.by)
        grouped[name] = group_entries(view, other, selection, question.by, check)
    keys, places = joined_keys({name: groups.keys for name, groups in grouped.items()})
    found = {
        name: dict(zip(places[name].tolist(), _selections(groups, selections[name]), strict=True))
        for name, groups in grouped.items()
    }
    empty = {name: Selection("no slot", np.zeros_like(resolved.selection.stays)) for name in (layer.name,)}
    empty |= {name: Selection("no slot", np.zeros_like(selection.stays)) for name, selection in partners.items()}
    return [
        _Group(
            key,
            found[layer.name].get(number, empty[layer.name]),
            {name: found[name].get(number, empty[name]) for name in partners},
        )
        for number, key in enumerate(keys)
    ]


def _selections(groups: Groups, selection: Selection) -> Iterator[Selection]:
    """The entries of each group."""
    order = np.argsort(groups.numbers, kind="stable")
    members = np.split(groups.entries[order], np.cumsum(groups.counts)[:-1])
    for number, entries in enumerate(members):
        stays = np.zeros_like(selection.stays)
        stays[entries] = True
        # No SQL reads like this, so no mask has this identity.
        yield Selection(f"group {number} by {', '.join(groups.by)} of {selection.identity}", stays, stored=False)


def _require_columns_of_samples(view: View, layer: Layer, other: Layer, by: Sequence[str]) -> None:
    spaces = [view.snapshot.space(one.space) for one in (layer, other)]
    if layer.space != other.space and not all(space.sample_columns.issuperset(by) for space in spaces):
        raise BadInput(
            f"Layer {layer.name!r} shares a parameter with layer {other.name!r}, whose slots are of space "
            f"{other.space!r}.",
            hint='Group only by columns of the sample, such as by="label".',
            field="by",
        )


def _weights(
    view: View, layer: Layer, groups: Sequence[_Group], at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    """M_g of each group. Raises BadInput where all of them have no room."""
    each = 8 * layer.d_out * layer.weight_width
    if each * len(groups) > BUDGET:
        raise BadInput(
            f"The weights of {len(groups)} groups take {each * len(groups) / 2**30:.1f} GiB; at most {BUDGET // each} "
            "groups fit.",
            hint="Group by a column with fewer values, or filter with where=.",
            field="by",
        )
    without = recorded_without_slots(view, layer, at_step, check)
    return [recorded(view, layer, group.selection, at_step, check, group.partners).less(without) for group in groups]
