"""The weights of a layer, rebuilt from the memory.

Shapes: T slots, d_in, d_out.

    W_T = a_0 W_0 + a_B B_0 + sum_t a_t delta_t x_t^T        b_T likewise, with x_t = 1

over the slots that the mask leaves. They keep the coefficient that they have in the whole training: a mask is
arithmetic removal from this sum, not a training without the others. W_0 and the momentum buffer B_0 that the optimizer
had when recording began are no slots, so no mask removes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query.exactness import require_exact
from dualform.query.mask import Selection
from dualform.query.slot_sum import slot_sum
from dualform.query.view import Check, View
from dualform.store.layer import Layer


@dataclass(frozen=True, eq=False)
class Rebuilt:
    weight: NDArray[np.float64]
    """float64[d_out, d_in]."""
    bias: NDArray[np.float64] | None
    """float64[d_out]."""

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def check_step(view: View, at_step: int | None) -> None:
    """Raises BadInput for a step that was not recorded."""
    steps = view.memory.steps
    if at_step is not None and not 0 <= at_step <= steps:
        raise BadInput(
            f"at_step is {at_step}, and {steps} steps were recorded.",
            hint=f"Ask for 0 (the initial network) to {steps} (the end).",
            field="at_step",
        )


def rebuild(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Rebuilt:
    """The weights as the selected slots leave them. Raises Inexact where the record does not explain the layer."""
    check_step(view, at_step)
    require_exact(view, layer, at_step)
    return build(view, layer, selection, at_step, check)


def build(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Rebuilt:
    """As `rebuild`, for a layer that may be inexact."""
    key = ("weights", layer.name, selection.identity, at_step)
    return view.cache.get(key, lambda: _build(view, layer, selection, at_step, check))


def _build(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Rebuilt:
    summed = slot_sum(view, layer, selection, at_step, check)
    weight = summed.weight + _standing(view, layer, layer.weight, at_step)
    bias = None if layer.bias is None else summed.bias + _standing(view, layer, layer.bias, at_step)
    return Rebuilt(weight, bias)


def _standing(view: View, layer: Layer, parameter: str, at_step: int | None) -> NDArray[np.float64]:
    """What of a parameter no slot brought: a_0 W_0 + a_B B_0."""
    factors = view.coefficients(layer, parameter, at_step)
    standing: NDArray[np.float64] = factors.initial * view.stored_weights("initial")[parameter].astype(np.float64)
    momentum = view.memory.momentum().get(parameter)
    if momentum is not None:
        standing += factors.momentum * momentum.astype(np.float64)
    return standing
