"""The weights of a layer, rebuilt from the memory.

Shapes: T slots, d_in, d_out.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

for every parameter of the layer, which may be some of W's columns and has coefficients of its own,
over the slots that the mask leaves. They keep the coefficient that they have in the whole training: a mask is
arithmetic removal from this sum, not a training without the others. W_0 and the momentum buffer B_0 that the optimizer
had when recording began are no slots, so no mask removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Grade
from dualform.errors import BadInput
from dualform.query.view import Check, View
from dualform.query.weights.exactness import require
from dualform.query.weights.slot_sum import slot_sum
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer


@dataclass(frozen=True, eq=False)
class Rebuilt:
    weight: NDArray[np.float64]
    """float64[d_out, d_in]."""
    bias: NDArray[np.float64] | None
    """float64[d_out]: the sum of all biases; None where there is none."""
    parameters: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By the name that the model gives them; float64[d_out, columns] and float64[d_out]."""
    grade: Grade = field(default_factory=lambda: Grade("exact"))
    standing: float = 0.0
    """Size of the standing term relative to the way the weights went; 0.0 where there is none."""

    @property
    def nbytes(self) -> int:
        # Weights among the parameters are parts of `weight`.
        return self.weight.nbytes + sum(p.nbytes for p in self.parameters.values() if p.ndim == 1)


def check_step(view: View, at_step: int | None) -> None:
    """Raises BadInput for a step that was not recorded."""
    steps = view.snapshot.steps
    if at_step is not None and not 0 <= at_step <= steps:
        raise BadInput(
            f"at_step is {at_step}, and {steps} steps were recorded.",
            hint=f"Ask for 0 (the initial network) to {steps} (the end).",
            field="at_step",
        )


def rebuild(
    view: View, layer: Layer, selection: Selection, at_step: int | None, allow_inexact: bool, check: Check
) -> Rebuilt:
    """The weights as the selected slots leave them. Raises Inexact where the record does not explain the layer."""
    check_step(view, at_step)
    grade = require(view, layer, at_step, allow_inexact)
    return replace(build(view, layer, selection, at_step, check), grade=grade)


def build(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Rebuilt:
    """As `rebuild`, for a layer that may be inexact."""
    key = ("weights", layer.name, selection.identity, at_step)
    return view.cache.get(key, lambda: _build(view, layer, selection, at_step, check))


def _build(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Rebuilt:
    summed = slot_sum(view, layer, selection, at_step, check)
    weight, parameters = summed.weight.copy(), dict[str, NDArray[np.float64]]()
    for parameter in layer.weights:
        parameters[parameter.name] = weight[:, parameter.start : parameter.stop]
        parameters[parameter.name] += _standing(view, layer, parameter.name, at_step)
    for parameter, own in zip(layer.biases, summed.biases, strict=True):
        parameters[parameter.name] = own + _standing(view, layer, parameter.name, at_step)
    biases = [parameters[parameter.name] for parameter in layer.biases]
    return Rebuilt(weight, np.sum(biases, axis=0) if biases else None, parameters)


def _standing(view: View, layer: Layer, parameter: str, at_step: int | None) -> NDArray[np.float64]:
    """What of a parameter no slot brought: a_0 W_0 + a_B B_0."""
    factors = view.coefficients(layer, parameter, at_step)
    standing: NDArray[np.float64] = factors.initial * view.stored_weights("initial")[parameter].astype(np.float64)
    momentum = view.snapshot.momentum().get(parameter)
    if momentum is not None:
        standing += factors.momentum * momentum.astype(np.float64)
    return standing
