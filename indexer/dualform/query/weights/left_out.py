"""What stays under a mask, from what it leaves out, where that is less: one pass over few slots, not over most.

    sum of the slots that stay  =  sum of all slots  -  sum of those left out

The sum of all slots is the same for every mask, and kept. In exact numbers both sides are equal; in float64 they differ
by what rounding does to their terms, whose sizes tell how much that is at most.

Shapes: m slots, d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dualform.query.score.key_rows import key_norms
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.rebuilt_weights import RebuiltWeights, rebuild, tied
from dualform.query.weights.requirement import require
from dualform.query.weights.slot_products import block_size, blocks, places
from dualform.query.weights.slot_sum import slot_coefficients, slot_sum
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer

_MOST = 1000.0
"""How much larger the terms that are left out may be than those that stay, in any output: three digits are lost."""


def left_out(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Selection | None:
    """The entries that a mask leaves out of a stored layer, where they are fewer than those that stay and the
    difference keeps the digits of what stays. None of a mask that leaves out nothing, and where the slots of this layer
    alone do not make its blocks by a linear rule.
    """
    out = len(selection.stays) - selection.count
    if not 0 < out < selection.count or not _own_sums(view, layer, check):
        return None
    found = complement(selection)
    gone, every = (
        term_sizes(view, layer, own, at_step, check) for own in (found, mask.selection(view, layer, None, check))
    )
    with np.errstate(invalid="ignore"):  # of a training that diverged
        near = bool((gone <= _MOST * (every - gone)).all()) and bool(np.isfinite(every).all())
    return found if near else None


def complement(selection: Selection) -> Selection:
    """What a selection leaves out."""
    # No SQL reads like this, so no mask has this identity: NOT (...) would leave out what is NULL.
    return Selection(f"all but: {selection.identity}", ~selection.stays)


def rebuilt_by_difference(
    view: View, layer: Layer, selection: Selection, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights | None:
    """As `rebuild`, but for the last digits, of a stored layer; None where `left_out` is. Raises as `rebuild`."""
    check_step(at_step, view.snapshot.steps)
    require(view, layer, at_step, allow_inexact, check)
    gone = left_out(view, layer, selection, at_step, check)
    if gone is None:
        return None
    whole = rebuild(view, layer, mask.selection(view, layer, None, check), at_step, allow_inexact, check)
    less = slot_sum(view, layer, gone, at_step, check)
    bias = None if whole.bias is None else whole.bias - less.biases.sum(axis=0)
    return replace(whole, weight=whole.weight - less.weight, bias=bias, parameters={})


def rebuilt_under(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
    partners: Mapping[str, Selection],
) -> RebuiltWeights:
    """By the difference where there is one, else as `rebuild`; for answers that promise no last digits."""
    found = rebuilt_by_difference(view, layer, selection, at_step, allow_inexact, check)
    return rebuild(view, layer, selection, at_step, allow_inexact, check, partners) if found is None else found


def term_sizes(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Doubles:
    """float64[d_out]: the sum of the absolute values of what the selected slots bring to each row of [W | b], at most:
    |a_t| ||x_t|| |delta_t|, where x_t is 1 of a bias.
    """

    def summed() -> Doubles:
        slots = slot_coefficients(view, layer, selection, at_step)
        keys, values = view.snapshot.keys(layer.name), view.snapshot.values(layer.name)
        rows = slots.slots if keys.row_of_entry is None else keys.row_of_entry[slots.slots]
        sizes = np.abs(slots.biases).sum(axis=0)
        for place, coefficients in zip(layer.weights, slots.weights, strict=True):
            sizes += np.abs(coefficients) * key_norms(view, layer.name, check, place.start, place.stop)[rows]
        found = np.zeros(layer.d_out)
        for start, stop, part in blocks(slots.slots, values.rows, block_size(values.width)):
            check()
            found += sizes[part] @ np.abs(values.block(start, stop)[places(slots.slots[part], start, stop)])
        return found

    return view.cache.get(("term sizes", layer.name, selection.identity, at_step), summed, check)


def _own_sums(view: View, layer: Layer, check: Check) -> bool:
    """Whether each block of a layer is a sum over its slots alone, by a linear rule."""
    names = {block.block_name for block in layer.parameters}
    alone = len(names) == len(layer.parameters) and not tied(view, layer, None, check)
    return alone and all(BlockRules(view.snapshot, block).linear for block in layer.parameters)
