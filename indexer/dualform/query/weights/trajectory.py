"""The blocks of a layer as the record has them: by coefficients, or by running the updates again.

What the record of a layer makes of its parameter blocks, whatever its status, and how far its weights moved.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

and what was deleted brought beside it (missing_terms.py),

under a linear update rule; under any other the trajectory is run again. Either is done for every
parameter block of the layer, which may be some of W's columns and has coefficients of its own, over the slots that a
mask leaves. They keep the coefficient that they have in the whole training. A block that several layers hold is the sum
of what the slots of each of them brought.

The trajectory of a parameter block, run once more from the stored slots: for rules that give no slot a coefficient.

At each update all slots make the whole gradient, which decides the update's scale; what a mask leaves goes through the
same scale beside it, beginning with the weights and buffers from before, which no mask removes. The work is one product
of values and keys for each update, and a state or two of the block in float64 is all that is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.workers import divide
from dualform.query.groups import StoredArrays
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import BlockRules, updates
from dualform.query.weights.missing_terms import brought_by_deleted
from dualform.query.weights.slot_gradients import Holder, SlotGradients, rounding_gradients
from dualform.query.weights.slot_products import BLOCK_BYTES, slot_sum
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules import Settings, State, UpdateRule, advanced, updated
from dualform.rules.half_precision_rule import HalfPrecisionRule
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer, Parameter, of_shape

Selections: TypeAlias = Mapping[str, Selection]
"""By layer, the entries that stay: of a layer, and of those that hold a parameter block of it."""
_KIND = f"trajectory 1 of {BLOCK_BYTES}"
_PIECE = 1 << 15
"""Numbers that a rule which treats each on its own is given at once: within the processor's cache."""


def trajectory(
    view: View, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check, *, whole: bool = False
) -> Doubles:
    """The block, as its layer uses it, as the slots that stay leave it once `at_step` steps were taken: float64.

    The `whole` is the block as all slots leave it, as it came out beside what stays. Its last bits are the mask's own,
    for sums are taken in another order: it is held against this mask's weights, and answers no other question.

    Raises Inexact where the optimizer has no update rule.
    """
    chosen = tuple((layer.name, selection.identity) for layer, _, selection in holders)
    # Both under one key: of two keys, a thread that makes one could wait for a thread that makes the other.
    made = view.cache.get(
        ("trajectory", block.block_name, chosen, at_step), lambda: _made(view, block, holders, at_step, check), check
    )
    found = made[-1] if whole else made[0]
    return found.T if block.transposed else found


def _made(
    view: View, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> tuple[Doubles, ...]:
    """What stays, and the whole where it is something else. At the end, and with all slots, from beside the keys where
    it was made before: every page begins with that.
    """
    every = at_step is None and all(selection.stored and selection.stays.all() for _, _, selection in holders)
    place = _place(view, block, holders) if every else None
    if place is not None:
        initial = block.stored_block_of(view.stored_weights("initial")[block.name])
        if (held := place.read((np.float64, initial.shape))) is not None:
            return (held[0],)
    whole, stays = _run(view, block, holders, at_step, check)
    if place is not None:
        place.write(stays)
    return (stays,) if whole is stays else (stays, whole)


def _place(view: View, block: Parameter, holders: Sequence[Holder]) -> StoredArrays | None:
    """Where the block is kept as all slots leave it. The manifests say W_0 and how the optimizer moved it."""
    said, memory = view.snapshot.tables_digest, view.snapshot
    if said is None or memory.deleted or not all(layer.keys and layer.values for layer, _, _ in holders):
        return None
    rows = [own for layer, _, _ in holders for own in (memory.keys(layer.name), memory.values(layer.name))]
    return StoredArrays.of(memory, _KIND, rows, [np.frombuffer(f"{said} {block.block_name}".encode(), np.uint8)])


def _run(
    view: View, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> tuple[Doubles, Doubles]:
    """The block as all slots make it, and as those that stay do."""
    rules = BlockRules(view.snapshot, block)
    states = _States(rules.first.buffers, *start_of(view, block))
    gradients = SlotGradients(view, holders, states.whole.weight.shape)
    alone = rounding_gradients(view, block.block_name)
    for update in updates(view.snapshot, block.block_name, at_step):
        rule = rules.at(update.last_step)
        half = rule.half if isinstance(rule, HalfPrecisionRule) else None
        whole, remaining = gradients.of(update.first_step, update.last_step, half, check)
        whole *= update.factor
        stays = None
        if not gradients.all_stay:
            remaining *= update.factor
            stays = alone.put(update.last_step, remaining)
        states.advance(rule, alone.put(update.last_step, whole), stays, update.settings)
    return states.whole.weight, (states.whole if gradients.all_stay else states.remaining).weight


def start_of(view: View, block: Parameter) -> tuple[Doubles, dict[str, Doubles]]:
    """The weight and what the optimizer kept of it before the first step."""
    held = view.snapshot.buffers().get(block.name, {})
    initial = view.stored_weights("initial")[block.name]
    buffers = {kind: of_shape(array, initial.shape) for kind, array in held.items()}
    parts = {kind: block.stored_block_of(array) if array.ndim else array for kind, array in buffers.items()}
    return _doubles(block.stored_block_of(initial)), {kind: _doubles(array) for kind, array in parts.items()}


def _doubles(array: NDArray[Any]) -> Doubles:
    """Contiguous, and nobody else's."""
    return np.array(array, dtype=np.float64, order="C")


class _States:
    """The block as all slots make it, and as those that stay do."""

    def __init__(self, shared: Sequence[str], weight: Doubles, buffers: dict[str, Doubles]) -> None:
        """`shared`: the buffers of which each slot has its share."""
        self.whole = State(weight, buffers)
        self.remaining = State(weight.copy(), {kind: buffers[kind].copy() for kind in shared if kind in buffers})

    @np.errstate(all="ignore")  # as where eps is 0: what is not finite stays so in the answer
    def advance(self, rule: UpdateRule, whole: Doubles, remaining: Doubles | None, settings: Settings) -> None:
        """One update with the whole gradient, and the part of it that stays; None for all of it."""
        if (both := rule.advance_both(self.whole, self.remaining, whole, remaining, settings)) is not None:
            self.whole, self.remaining = both
            return
        if rule.commutes_with != "entries":
            # A rule may keep the array that it is given, as a first momentum; this one is filled again.
            stays = None if remaining is None else remaining.copy()
            self.whole, self.remaining = _advanced(rule, self.whole, self.remaining, whole.copy(), stays, settings)
            return
        pieces = range(0, whole.size, _PIECE)
        after = [(State(np.empty(0)), State(np.empty(0)))] * len(pieces)

        @np.errstate(all="ignore")  # of this thread
        def work(_: int, number: int) -> None:
            part = slice(pieces[number], pieces[number] + _PIECE)
            own, share_of = _piece(self.whole, part), _piece(self.remaining, part)
            gradient = whole.reshape(-1)[part]
            stays = None if remaining is None else remaining.reshape(-1)[part]
            after[number] = _advanced(rule, own, share_of, gradient, stays, settings)
            _write(own, after[number][0])
            if stays is not None:
                _write(share_of, after[number][1])

        divide(range(len(pieces)), work)
        self.whole = _joined(self.whole, [own for own, _ in after])
        if remaining is not None:
            self.remaining = _joined(self.remaining, [own for _, own in after])


def _advanced(
    rule: UpdateRule, whole: State, remaining: State, gradient: Doubles, stays: Doubles | None, settings: Settings
) -> tuple[State, State]:
    after, scale = updated(rule, whole, gradient, settings)
    return after, remaining if stays is None else advanced(rule, remaining, stays, settings, scale)


def _piece(state: State, part: slice) -> State:
    """A range of a state's numbers; a buffer that is one number for all of them stays whole."""
    buffers = {kind: array.reshape(-1)[part] if array.ndim else array for kind, array in state.buffers.items()}
    return State(state.weight.reshape(-1)[part], buffers)


def _write(to: State, state: State) -> None:
    to.weight[:] = state.weight
    for kind, array in to.buffers.items():
        if array.ndim:
            array[:] = state.buffers[kind]


def _joined(state: State, pieces: Sequence[State]) -> State:
    """A state that was advanced in pieces, which wrote what it had; what is new is put together."""
    buffers = dict(state.buffers)
    for kind, first in pieces[0].buffers.items():
        if not first.ndim:
            buffers[kind] = first
        elif kind not in buffers or not buffers[kind].ndim:
            buffers[kind] = np.concatenate([own.buffers[kind] for own in pieces]).reshape(state.weight.shape)
    return State(state.weight, buffers)


def build(
    view: View,
    layer: Layer,
    selections: Selections,
    at_step: int | None,
    check: Check,
    *,
    whole: bool = False,
    afresh: bool = False,
) -> dict[str, Doubles]:
    """The layer's blocks by name, of the record alone, whatever its status; the `whole` is what all slots make of them,
    as it came out beside what the slots which stay make, and `afresh` what they make of it now, whatever was kept.
    """
    found: dict[str, Doubles] = {}
    for block in layer.parameters:
        holders = holders_of(view, block, selections)
        if not BlockRules(view.snapshot, block).linear:
            found[block.block_name] = trajectory(view, block, holders, at_step, check, whole=whole)
            continue
        if whole:
            every = mask.record_itself if afresh else _every_slot
            holders = [(holder, place, every(view, holder)) for holder, place, _ in holders]
        found[block.block_name] = _summed(view, layer, block, holders, at_step, check)
    return found


def unrecorded_changes(
    view: View, layer: Layer, selections: Selections, check: Check, *, afresh: bool = False
) -> dict[str, Doubles]:
    """By block, the final weights minus those rebuilt from all slots; empty where there are none of their shape. They
    are for weights as the selected slots leave them. `afresh`: as of `build`.
    """
    final, initial = view.snapshot.final() or {}, view.stored_weights("initial")
    names = [block.name for block in layer.parameters]
    if any(name not in final or final[name].shape != initial[name].shape for name in names):
        return {}
    rebuilt = build(view, layer, selections, None, check, whole=True, afresh=afresh)
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


def every_slot(view: View) -> Selections:
    """What no mask leaves out."""
    return {name: _every_slot(view, layer) for name, layer in view.snapshot.layers.items()}


def no_slot(view: View) -> Selections:
    # No SQL reads like this, so no mask has this identity.
    counts = {name: view.snapshot.entries(name).count for name in view.snapshot.layers}
    return {name: Selection("no slot", np.zeros(count, dtype=np.bool_)) for name, count in counts.items()}


def holders_of(view: View, block: Parameter, selections: Selections) -> list[Holder]:
    """Every layer that holds a block, its place there, and the slots of that layer that stay."""
    return [
        (layer, place, selections[layer.name])
        for layer in view.holders([block])
        for place in layer.parameters
        if place.block_name == block.block_name
    ]


def _summed(
    view: View, layer: Layer, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> Doubles:
    """A block under a linear rule."""
    terms = []
    for holder, place, chosen in holders:
        term = _term(view, holder, place, chosen, at_step, check)
        terms.append(term if place.transposed == block.transposed else term.T)
    summed: Doubles = np.add.reduce(terms) + initial_block(view, layer, block, at_step)
    brought = brought_by_deleted(view, block, at_step)
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
