"""The weights of a layer, rebuilt from the memory.

Shapes: T slots, d_in, d_out.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

for every parameter of the layer, which may be some of W's columns and has coefficients of its own,
over the slots that the mask leaves. They keep the coefficient that they have in the whole training: a mask is
arithmetic removal from this sum, not a training without the others. W_0 and the momentum buffer B_0 that the optimizer
had when recording began are no slots, so no mask removes them. A parameter that several layers hold is the sum of what
the slots of each of them brought.

Where the record is not exact, the end of the training has one more term, W_T minus the sum over all slots: what moved
outside the record. It stands like W_0 whatever the mask leaves, and it is no part of the grade.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Grade
from dualform.errors import BadInput
from dualform.query.view import Check, View
from dualform.query.weights.exactness import require
from dualform.query.weights.slot_sum import slot_sum
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.store.layer import Layer, Parameter

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RebuiltWeights:
    """A layer's weights and biases under a mask, as of a step."""

    weight: Doubles
    """float64[d_out, d_in]."""
    bias: Doubles | None
    """float64[d_out]: the sum of all biases; None where there is none."""
    parameters: Mapping[str, Doubles] = field(default_factory=dict)
    """By the name that the model gives them; float64[d_out, columns] and float64[d_out]."""
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
    """The layer's parameters by name, of the record alone, whatever its grade."""
    found: dict[str, Doubles] = {}
    for parameter in layer.parameters:
        terms = [
            _term(view, holder, place, chosen, at_step, check)
            for holder, place, chosen in _holders(view, layer, parameter, selection, partners)
        ]
        found[parameter.name] = np.add.reduce(terms) + _initial(view, layer, parameter.name, at_step)
    return found


def standing_terms(view: View, layer: Layer, check: Check) -> dict[str, Doubles]:
    """By parameter, the final weights minus those rebuilt from all slots; empty where there are none of their shape."""
    final, initial = view.snapshot.final() or {}, view.stored_weights("initial")
    names = [parameter.name for parameter in layer.parameters]
    if any(name not in final or final[name].shape != initial[name].shape for name in names):
        return {}
    whole = {name: mask.selection(view, other, None) for name, other in view.snapshot.layers.items()}
    rebuilt = build(view, layer, whole[layer.name], None, check, whole)
    return {name: final[name].astype(np.float64) - own for name, own in rebuilt.items()}


def _holders(
    view: View, layer: Layer, parameter: Parameter, selection: Selection, partners: Mapping[str, Selection] | None
) -> list[tuple[Layer, Parameter, Selection]]:
    """Every layer that holds a parameter, its place there, and the slots of that layer that stay."""
    found = [(layer, parameter, selection)]
    for other in view.snapshot.layers.values():
        for place in other.parameters:
            if other.name != layer.name and place.name == parameter.name:
                found.append((other, place, (partners or {})[other.name]))
    order = list(view.snapshot.layers)
    return sorted(found, key=lambda holder: order.index(holder[0].name))


def tied(view: View, layer: Layer, where: str | None) -> dict[str, Selection]:
    """The entries that a mask leaves of the other layers that hold a parameter of this one.

    Raises BadInput for a mask where one of them has slots of another space, of which the mask says nothing.
    """
    own = {parameter.name for parameter in layer.parameters}
    found = {}
    for other in view.snapshot.layers.values():
        if other.name == layer.name or own.isdisjoint(parameter.name for parameter in other.parameters):
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


def _term(
    view: View, layer: Layer, place: Parameter, selection: Selection, at_step: int | None, check: Check
) -> Doubles:
    """What a layer's slots brought to one of its parameters."""
    summed = slot_sum(view, layer, selection, at_step, check)
    own: Doubles = summed.weight[:, place.start : place.stop]
    if place in layer.biases:
        own = summed.biases[layer.biases.index(place)]
    return own


def _initial(view: View, layer: Layer, parameter: str, at_step: int | None) -> Doubles:
    """What of a parameter no slot brought: a_0 W_0 + a_B B_0."""
    factors = view.coefficients(layer, parameter, at_step)
    standing: Doubles = factors.initial * view.stored_weights("initial")[parameter].astype(np.float64)
    momentum = view.snapshot.momentum().get(parameter)
    if momentum is not None:
        standing += factors.momentum * momentum.astype(np.float64)
    return standing


def _joined(layer: Layer, parameters: Mapping[str, Doubles], grade: Grade, standing: float) -> RebuiltWeights:
    """The parameters in their places of [W | b]; those that are weights as parts of it."""
    weight = np.empty((layer.d_out, layer.d_in))
    placed = dict(parameters)
    for place in layer.weights:
        weight[:, place.start : place.stop] = parameters[place.name]
        placed[place.name] = weight[:, place.start : place.stop]
    biases = [parameters[place.name] for place in layer.biases]
    return RebuiltWeights(weight, np.sum(biases, axis=0) if biases else None, placed, grade, standing)


def way(view: View, layer: Layer) -> dict[str, Doubles]:
    """By parameter, how far its final value is from its initial one."""
    final, initial = view.stored_weights("final"), view.stored_weights("initial")
    names = [parameter.name for parameter in layer.parameters]
    return {name: final[name].astype(np.float64) - initial[name].astype(np.float64) for name in names}


def length(parameters: Mapping[str, Doubles]) -> float:
    """The Frobenius norm over all of them together."""
    return math.hypot(*(float(np.linalg.norm(own)) for own in parameters.values()))
