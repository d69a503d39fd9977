"""The weights of a layer, rebuilt from the memory.

Shapes: T slots, d_in, d_out.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

under a linear update rule; another one is run again (trajectory.py),
for every parameter block of the layer, which may be some of W's columns and has coefficients of its own,
over the slots that the mask leaves. They keep the coefficient that they have in the whole training: a mask is
arithmetic removal from this sum, not a training without the others. W_0 and the momentum buffer B_0 that the optimizer
had when recording began are no slots, so no mask removes them. A block that several layers hold is the sum of what the
slots of each of them brought.

Where the record is not exact, the end of the training has one more term, W_T minus the sum over all slots: what moved
outside the record. It stands like W_0 whatever the mask leaves, and it is no part of the grade.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Grade
from dualform.errors import BadInput
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import rule_of
from dualform.query.weights.exactness import require
from dualform.query.weights.slot_gradients import Holder
from dualform.query.weights.slot_sum import slot_sum
from dualform.query.weights.trajectory import trajectory
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.rules import LinearRule
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RebuiltWeights:
    """A layer's weights and biases under a mask, as of a step."""

    weight: Doubles
    """float64[d_out, d_in]."""
    bias: Doubles | None
    """float64[d_out]: the sum of all biases; None where there is none."""
    parameters: Mapping[str, Doubles] = field(default_factory=dict)
    """By block, as the layer uses it; float64[d_out, columns] and float64[d_out]."""
    grade: Grade = field(default_factory=lambda: Grade("exact"))
    standing: float = 0.0
    """Norm of the standing term relative to the way that the weights went; 0.0 where it is not used."""

    @property
    def nbytes(self) -> int:
        # Weights among the parameters are parts of `weight`.
        return self.weight.nbytes + sum(p.nbytes for p in self.parameters.values() if p.ndim == 1)


def rebuild(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
) -> RebuiltWeights:
    """The weights as the selected slots leave them, with the standing term where the record is not exact.

    `partners`: by layer, the entries that stay of other layers that hold the same parameters. Raises Inexact as
    `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    grade = require(view, layer, at_step, allow_inexact)
    key = ("weights", layer.name, selection.identity, _identity(partners), at_step)
    return view.cache.get(key, lambda: _rebuild(view, layer, selection, at_step, grade, check, partners))


def _identity(partners: Mapping[str, Selection] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, selection.identity) for name, selection in (partners or {}).items()))


def _rebuild(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    grade: Grade,
    check: Check,
    partners: Mapping[str, Selection] | None,
) -> RebuiltWeights:
    parameters = build(view, layer, selection, at_step, check, partners)
    standing = 0.0
    at_end = at_step is None or at_step == view.snapshot.steps
    if at_end and not grade.exact and (terms := standing_terms(view, layer, check)):
        standing = length(terms) / (length(way(view, layer)) or math.nan)
        parameters = {name: own + terms[name] for name, own in parameters.items()}
    return _joined(layer, parameters, grade, standing)


def build(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
) -> dict[str, Doubles]:
    """The layer's blocks by name, of the record alone, whatever its grade."""
    found: dict[str, Doubles] = {}
    linear = isinstance(rule_of(view.snapshot), LinearRule)
    for block in layer.parameters:
        holders = _holders(view, layer, block, selection, partners)
        if linear:
            found[block.block_name] = _summed(view, layer, block, holders, at_step, check)
        else:
            found[block.block_name] = trajectory(view, block, holders, at_step, check)
    return found


def standing_terms(view: View, layer: Layer, check: Check) -> dict[str, Doubles]:
    """By block, the final weights minus those rebuilt from all slots; empty where there are none of their shape."""
    final, initial = view.snapshot.final() or {}, view.stored_weights("initial")
    names = [block.name for block in layer.parameters]
    if any(name not in final or final[name].shape != initial[name].shape for name in names):
        return {}
    whole = {name: mask.selection(view, other, None) for name, other in view.snapshot.layers.items()}
    rebuilt = build(view, layer, whole[layer.name], None, check, whole)
    return {name: own - rebuilt[name] for name, own in blocks_of(layer, final).items()}


def blocks_of(layer: Layer, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Doubles]:
    """A layer's blocks by name, of parameters by name."""
    return {block.block_name: block.block_of(arrays[block.name]).astype(np.float64) for block in layer.parameters}


def _holders(
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


def tied(view: View, layer: Layer, where: str | None) -> dict[str, Selection]:
    """The entries that a mask leaves of the other layers that hold a block of this one.

    Raises BadInput for a mask where one of them has slots of another space, of which the mask says nothing.
    """
    own = {block.block_name for block in layer.parameters}
    found = {}
    for other in view.snapshot.layers.values():
        if other.name == layer.name or own.isdisjoint(block.block_name for block in other.parameters):
            continue
        if where is not None and other.space != layer.space:
            raise BadInput(
                f"layer {layer.name!r} shares a parameter with layer {other.name!r}, whose slots are of space "
                f"{other.space!r}.",
                hint="Ask for the weights instead, with a mask for each space.",
                field="where",
            )
        found[other.name] = mask.selection(view, other, where)
    return found


def _summed(
    view: View, layer: Layer, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> Doubles:
    """A block under a linear rule."""
    terms = []
    for holder, place, chosen in holders:
        term = _term(view, holder, place, chosen, at_step, check)
        terms.append(term if place.transposed == block.transposed else term.T)
    summed: Doubles = np.add.reduce(terms) + _initial(view, layer, block, at_step)
    return summed


def _term(
    view: View, layer: Layer, place: Parameter, selection: Selection, at_step: int | None, check: Check
) -> Doubles:
    """What a layer's slots brought to one of its parameters."""
    summed = slot_sum(view, layer, selection, at_step, check)
    own: Doubles = summed.weight[:, place.start : place.stop]
    if place in layer.biases:
        own = summed.biases[layer.biases.index(place)]
    return own


def _initial(view: View, layer: Layer, block: Parameter, at_step: int | None) -> Doubles:
    """What of a block no slot brought: a_0 W_0 + a_B B_0."""
    factors = view.coefficients(layer, block.block_name, at_step)
    initial = block.block_of(view.stored_weights("initial")[block.name])
    standing: Doubles = factors.initial * initial.astype(np.float64)
    held = view.snapshot.buffers().get(block.name, {})
    for kind, factor in factors.buffers.items():
        standing += factor * block.block_of(held[kind]).astype(np.float64)
    return standing


def _joined(layer: Layer, blocks: Mapping[str, Doubles], grade: Grade, standing: float) -> RebuiltWeights:
    """The blocks in their places of [W | b]; those that are weights as parts of it."""
    weight = np.empty((layer.d_out, layer.d_in))
    placed = dict(blocks)
    for place in layer.weights:
        weight[:, place.start : place.stop] = blocks[place.block_name]
        placed[place.block_name] = weight[:, place.start : place.stop]
    biases = [blocks[place.block_name] for place in layer.biases]
    return RebuiltWeights(weight, np.sum(biases, axis=0) if biases else None, placed, grade, standing)


def way(view: View, layer: Layer) -> dict[str, Doubles]:
    """By block, how far its final value is from its initial one."""
    final, initial = (blocks_of(layer, view.stored_weights(which)) for which in ("final", "initial"))
    return {name: own - initial[name] for name, own in final.items()}


def length(parameters: Mapping[str, Doubles]) -> float:
    """The Frobenius norm over all of them together."""
    return math.hypot(*(float(np.linalg.norm(own)) for own in parameters.values()))
