"""How much the removed slots cancel each other, and where a filter moves the weights.

How far a mask moves a layer's weights under a rule that scales gradients, and in how few of their entries.

    share       sum over the furthest 1 % of the entries of (w - w_whole)^2  /  sum over all of them
    greatest    max |w - w_whole|  /  ||W_T - W_0||

w: the entries of [W | b] as the slots that stay make them, through the scales that all slots made. No reconstruction
error sees what these say: shares add up to the whole however far single ones go.

How much the slots that a mask removes cancel each other.

    sum_t ||a_t delta_t|| ||x_t||  /  || sum_t a_t delta_t x_t^T ||_F        over the removed slots

1 where they all push one way; tens or hundreds, as is usual for SGD, mean that removing them moves the weights by a
small difference of large terms: the result is not what training without them would give. Of rules that give a slot no
term of its own, `concentration` tells how far the mask moves the weights.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Concentration
from dualform.query.groups import StoredArrays
from dualform.query.score.canonical import norms
from dualform.query.score.key_rows import key_norms
from dualform.query.view import Check, View
from dualform.query.weights.output import complement
from dualform.query.weights.reconstruction import require
from dualform.query.weights.slot_products import (
    BLOCK_BYTES,
    SlotCoefficients,
    block_size,
    blocks,
    slot_coefficients,
    slot_sum,
)
from dualform.query.weights.trajectory import Selections, blocks_of, build, length
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.rows import Keys, Rows

KIND = f"cancelled terms 1 of {BLOCK_BYTES}"


def cancellation(
    view: View, layer: Layer, selection: Selection, at_step: int | None, allow_inexact: bool, check: Check
) -> float:
    """The figure for the slots that `selection` leaves out; NaN where those move nothing.

    Of layers whose rule gives slots coefficients. Raises Inexact as `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    require(view, layer.stored, at_step, allow_inexact, check)
    key = ("cancellation", layer.name, selection.identity, at_step)
    return view.cache.get(key, lambda: _measure_cancellation(view, layer, selection, at_step, check))


def _measure_cancellation(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> float:
    removed = complement(selection)
    length = float(np.linalg.norm(slot_sum(view, layer, removed, at_step, check).weight))
    terms = _terms(view, layer, slot_coefficients(view, layer, removed, at_step), check)
    if length:
        return terms / length
    return math.inf if terms else math.nan


def _terms(view: View, layer: Layer, slots: SlotCoefficients, check: Check) -> float:
    """sum_t ||delta_t|| ||a_t x_t||, where a weight's columns of x_t have a coefficient of their own."""
    keys, values = view.snapshot.keys(layer.name), view.snapshot.values(layer.name)
    place = StoredArrays.of(view.snapshot, KIND, [keys, values], [slots.slots, slots.weights])
    held = place.read((np.float64, (1,))) if place else None
    if held is not None:
        return float(held[0][0])
    terms = _summed(view, layer, keys, values, slots, check)
    if place:
        place.write(np.array([terms]))
    return terms


def _summed(view: View, layer: Layer, keys: Keys, values: Rows, slots: SlotCoefficients, check: Check) -> float:
    rows = slots.slots if keys.row_of_entry is None else keys.row_of_entry[slots.slots]
    if layer.groups > 1:
        return _terms_of_groups(layer.groups, keys, values, slots, check)
    own = np.zeros(len(rows))
    for weight, coefficient in zip(layer.weights, slots.weights, strict=True):
        own = np.hypot(own, key_norms(view, layer.name, check, weight.start, weight.stop)[rows] * coefficient)
    terms = 0.0
    for start, stop, part in blocks(slots.slots, keys.entries, block_size(values.width)):
        check()
        terms += float(own[part] @ norms(values.block(start, stop))[slots.slots[part] - start])
    return terms


def _terms_of_groups(groups: int, keys: Keys, values: Rows, slots: SlotCoefficients, check: Check) -> float:
    """As `_terms`, where a slot brings a block for each group to the weight: the norm is that of all of them."""
    terms, (coefficients,) = 0.0, slots.weights
    for start, stop, part in blocks(slots.slots, keys.entries, block_size(max(keys.width, values.width))):
        check()
        own = slots.slots[part] - start
        squares = (_squares(rows, groups)[own] for rows in (values.block(start, stop), keys.entry_block(start, stop)))
        lengths = np.sqrt(np.einsum("tg,tg->t", *squares))
        terms += float(np.abs(coefficients[part]) @ lengths)
    return terms


def _squares(rows: NDArray[np.float32], groups: int) -> NDArray[np.float64]:
    """float64[n, G]: the squared length of each part of each row."""
    parts = rows.astype(np.float64).reshape(len(rows), groups, -1)
    squares: NDArray[np.float64] = np.einsum("tgi,tgi->tg", parts, parts)
    return squares


_SHARE = 100
"""One in so many entries."""


def concentration(
    view: View,
    layer: Layer,
    selections: Selections,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
) -> Concentration:
    """The figures of a layer under the masks of `selections`, by layer: its own and those it shares a block with.

    Raises Inexact as `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    require(view, layer.stored, at_step, allow_inexact, check)
    key = ("concentration", layer.name, tuple(sorted((n, s.identity) for n, s in selections.items())), at_step)
    return view.cache.get(key, lambda: _measure_concentration(view, layer, selections, at_step, check))


def _measure_concentration(
    view: View, layer: Layer, selections: Selections, at_step: int | None, check: Check
) -> Concentration:
    stored, rows = layer.stored, layer.own_values
    masked = build(view, stored, selections, at_step, check)
    whole = build(view, stored, selections, at_step, check, whole=True)
    initial = blocks_of(stored, view.stored_weights("initial"))
    moves = np.concatenate([np.abs(masked[name][rows] - own[rows]).reshape(-1) for name, own in whole.items()])
    return _figures(moves, length({name: own[rows] - initial[name][rows] for name, own in whole.items()}))


def _figures(moves: Doubles, way: float) -> Concentration:
    """`moves` float64[entries]: how far each moved."""
    furthest = float(moves.max())
    if not furthest:
        return Concentration(math.nan, 0.0)
    squares = np.square(moves / furthest)  # no square of a small move underflows
    few = math.ceil(len(squares) / _SHARE)
    held = np.partition(squares, len(squares) - few)[-few:]
    return Concentration(float(held.sum() / squares.sum()), furthest / way if way else math.inf)
