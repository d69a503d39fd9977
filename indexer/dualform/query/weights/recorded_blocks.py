"""What the record of a layer makes of its parameter blocks, whatever its status, and how far its weights moved.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

and what was deleted brought beside it (deleted_terms.py),

under a linear update rule; under any other the trajectory is run again (trajectory.py). Either is done for every
parameter block of the layer, which may be some of W's columns and has coefficients of its own, over the slots that a
mask leaves. They keep the coefficient that they have in the whole training. A block that several layers hold is the sum
of what the slots of each of them brought.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.query.view import Check, View
from dualform.query.weights import deleted_terms
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.slot_gradients import Holder
from dualform.query.weights.slot_sum import slot_sum
from dualform.query.weights.trajectory import trajectory, whole_beside
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


def build(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
    *,
    whole: bool = False,
    afresh: bool = False,
) -> dict[str, Doubles]:
    """The layer's blocks by name, of the record alone, whatever its status; the `whole` is what all slots make of them,
    as it came out beside what the slots which stay make, and `afresh` what they make of it now, whatever was kept.
    """
    found: dict[str, Doubles] = {}
    rerun = whole_beside if whole else trajectory
    for block in layer.parameters:
        holders = holders_of(view, layer, block, selection, partners)
        if not BlockRules(view.snapshot, block).linear:
            found[block.block_name] = rerun(view, block, holders, at_step, check)
            continue
        if whole:
            every = mask.record_itself if afresh else _every_slot
            holders = [(holder, place, every(view, holder)) for holder, place, _ in holders]
        found[block.block_name] = _summed(view, layer, block, holders, at_step, check)
    return found


def unrecorded_changes(
    view: View,
    layer: Layer,
    selection: Selection,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
    *,
    afresh: bool = False,
) -> dict[str, Doubles]:
    """By block, the final weights minus those rebuilt from all slots; empty where there are none of their shape. They
    are for weights as the selected slots leave them. `afresh`: as of `build`.
    """
    final, initial = view.snapshot.final() or {}, view.stored_weights("initial")
    names = [block.name for block in layer.parameters]
    if any(name not in final or final[name].shape != initial[name].shape for name in names):
        return {}
    rebuilt = build(view, layer, selection, None, check, partners, whole=True, afresh=afresh)
    return {name: own - rebuilt[name] for name, own in blocks_of(layer, final).items()}


def blocks_of(layer: Layer, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Doubles]:
    """A layer's blocks by name, of parameters by name."""
    return {block.block_name: block.block_of(arrays[block.name]).astype(np.float64) for block in layer.parameters}


def way(view: View, layer: Layer) -> dict[str, Doubles]:
    """By block, how far its final value is from its initial one."""
    final, initial = (blocks_of(layer, view.stored_weights(which)) for which in ("final", "initial"))
    return {name: own - initial[name] for name, own in final.items()}


def length(parameters: Mapping[str, Doubles]) -> float:
    """The Frobenius norm over all of them together."""
    return math.hypot(*(float(np.linalg.norm(own)) for own in parameters.values()))


def _every_slot(view: View, layer: Layer) -> Selection:
    return mask.selection(view, layer, None)


def holders_of(
    view: View, layer: Layer, block: Parameter, selection: Selection, partners: Mapping[str, Selection] | None
) -> list[Holder]:
    """Every layer that holds a block, its place there, and the slots of that layer that stay."""
    found = []
    for other in view.snapshot.layers.values():
        for place in other.parameters:
            if place.block_name == block.block_name:
                own = other.name == layer.name
                found.append((other, place, selection if own else (partners or {})[other.name]))
    return found


def _summed(
    view: View, layer: Layer, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> Doubles:
    """A block under a linear rule."""
    terms = []
    for holder, place, chosen in holders:
        term = _term(view, holder, place, chosen, at_step, check)
        terms.append(term if place.transposed == block.transposed else term.T)
    summed: Doubles = np.add.reduce(terms) + initial_block(view, layer, block, at_step)
    brought = deleted_terms.brought(view, block, at_step)
    return summed if brought is None else summed + brought


def _term(
    view: View, layer: Layer, place: Parameter, selection: Selection, at_step: int | None, check: Check
) -> Doubles:
    """What a layer's slots brought to one of its parameters."""
    summed = slot_sum(view, layer, selection, at_step, check)
    own: Doubles = summed.weight[:, place.start : place.stop]
    if place in layer.biases:
        own = summed.biases[layer.biases.index(place)]
    return own


def initial_block(view: View, layer: Layer, block: Parameter, at_step: int | None) -> Doubles:
    """What of a block no slot brought: a_0 W_0 + a_B B_0."""
    factors = view.coefficients(layer, block.block_name, at_step)
    initial = block.block_of(view.stored_weights("initial")[block.name])
    found: Doubles = factors.initial * initial.astype(np.float64)
    held = view.snapshot.buffers().get(block.name, {})
    for kind, factor in factors.buffers.items():
        found += factor * block.block_of(held[kind]).astype(np.float64)
    return found
