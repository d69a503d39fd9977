"""The value that each slot has of its own, whatever weighs it: its coefficient, for every part of the layer's weight.

Shapes: m slots, H entries of the layer, T recorded steps, w parts of its weight.

A weight may have parts that the optimizer updates one by one, as an LSTM's of its inputs and of its state. Their slots
have one value where the parts moved alike: settings of the same numbers, and gradient factors, which are measured, as
far apart as the status of the layer allows. A part to which no slot of a step brought anything says nothing of that
step: its gradient is zero, and no factor can be told from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import Inexact
from dualform.query.score.key_rows import key_norms
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import weighs_no_slot
from dualform.query.weights.block_status import BFLOAT16, EXACT
from dualform.query.weights.coefficients import updates
from dualform.query.weights.slot_products import block_size
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer


class WithoutValues(Inexact):
    """The slots of a layer have no values of their own."""


@dataclass(frozen=True)
class Remedy:
    """What to do instead where slots have no values of their own, in the words of the question that needs them."""

    hint: str
    field: str


@dataclass(frozen=True, eq=False)
class SlotValues:
    """Those of the slots that a mask leaves and whose gradient an update used."""

    entries: NDArray[np.int64]
    """int64[m], ascending."""
    coefficients: NDArray[np.float64]
    """float64[m]: what makes a value of each slot's error signal."""


def slot_values(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    status: Status,
    check: Check,
    remedy: Remedy,
) -> SlotValues:
    """Of a layer that `refuse_without_values` lets pass.

    Raises WithoutValues where the parts of its weight moved apart.
    """
    parts, allowed = _Parts.of(view, layer, at_step), _allowed(layer, status)
    steps = view.slot_steps(layer)[selection.entries]
    asked = np.unique(steps[parts.used[:, steps].any(axis=0)])
    speaks = np.ones(parts.used.shape, dtype=np.bool_)
    if not parts.alike(speaks, asked, allowed):
        speaks = _speaks(view, layer, check)
        if not parts.alike(speaks, asked, allowed):
            names = ", ".join(block.block_name for block in layer.weights)
            raise WithoutValues(
                f"Contributions of single slots are not defined for layer {layer.name!r}: the parts of its weight, "
                f"{names}, moved differently.",
                hint=remedy.hint,
                field=remedy.field,
            )
    chosen, coefficients = _first(parts.used, speaks)[steps], _first(parts.per_step, speaks)
    return SlotValues(selection.entries[chosen], coefficients[steps[chosen]])


def refuse_without_values(view: View, layer: Layer, remedy: Remedy) -> None:
    """Raises WithoutValues for a rule or a layer that gives its slots no values. `require` asks what was recorded."""
    if (optimizer := weighs_no_slot(view.snapshot, layer.parameters)) is not None:
        raise WithoutValues(
            f"Single slots have no term of their own in layer {layer.name!r}: it was trained with {optimizer}, which "
            "scales all gradients of a step together.",
            hint=remedy.hint,
            field=remedy.field,
        )
    own = {block.block_name for block in layer.weights}
    for other in view.snapshot.layers.values():
        if other.name != layer.name and not own.isdisjoint(block.block_name for block in other.parameters):
            raise WithoutValues(
                f"Contributions of single slots are not defined for layer {layer.name!r}: it shares a parameter with "
                f"layer {other.name!r}, whose slots are others.",
                hint=remedy.hint,
                field=remedy.field,
            )


def _allowed(layer: Layer, status: Status) -> float:
    """Relative: how far apart the measured factors of two parts may be."""
    least = BFLOAT16 if layer.dtype == "bfloat16" else EXACT
    return max(least, status.error) if status.error is not None and math.isfinite(status.error) else least


@dataclass(frozen=True, eq=False)
class _Parts:
    """What the optimizer made of each part of a weight, by step."""

    per_step: NDArray[np.float64]
    """float64[w, T]: coefficients."""
    by_settings: NDArray[np.float64]
    """float64[w, T]: what they would be if every gradient factor were 1."""
    used: NDArray[np.bool_]
    """bool[w, T]: whether an update before `at_step` used the gradient, whatever came of it."""

    @classmethod
    def of(cls, view: View, layer: Layer, at_step: int | None) -> _Parts:
        names = [block.block_name for block in layer.weights]
        per_step, by_settings = (
            np.array([view.coefficients(layer, name, at_step, factors=factors).per_step for name in names])
            for factors in (True, False)
        )
        return cls(
            per_step, by_settings, np.array([_used_steps(view, layer.log_name(name), at_step) for name in names])
        )

    def alike(self, speaks: NDArray[np.bool_], steps: NDArray[np.int64], allowed: float) -> bool:
        """Whether at each of some steps all parts that speak of it moved alike."""
        same = self.used == _first(self.used, speaks)
        same &= self.by_settings == _first(self.by_settings, speaks)
        same &= np.isclose(self.per_step, _first(self.per_step, speaks), rtol=allowed, atol=0.0)
        return bool((same | ~speaks)[:, steps].all())


def _first(numbers: NDArray[Any], speaks: NDArray[np.bool_]) -> NDArray[Any]:
    """[T] of [w, T]: by step, those of the first part that speaks of it; of the first part where none does."""
    found: NDArray[Any] = np.take_along_axis(numbers, speaks.argmax(axis=0)[None], axis=0)[0]
    return found


def _used_steps(view: View, block: str, at_step: int | None) -> NDArray[np.bool_]:
    used = np.zeros(view.snapshot.steps, dtype=np.bool_)
    for update in updates(view.snapshot, block, view.snapshot.steps if at_step is None else at_step):
        used[update.first_step : update.last_step + 1] = True
    return used


def _speaks(view: View, layer: Layer, check: Check) -> NDArray[np.bool_]:
    """bool[w, T]: whether some slot of a step brought anything to a part: a pass over the values, kept in the cache."""

    def made() -> NDArray[np.bool_]:
        steps, values = view.slot_steps(layer), view.snapshot.values(layer.name)
        rows = view.snapshot.keys(layer.name).row_of_entry
        of_parts = [key_norms(view, layer.name, check, weight.start, weight.stop) != 0 for weight in layer.weights]
        found = np.zeros((len(of_parts), view.snapshot.steps), dtype=np.bool_)
        size = block_size(values.width)
        for start in range(0, values.rows, size):
            check()
            stop = min(start + size, values.rows)
            loud = values.block(start, stop).any(axis=1)
            own = slice(start, stop) if rows is None else rows[start:stop]
            for one, keyed in zip(found, of_parts, strict=True):
                one[steps[start:stop][loud & keyed[own]]] = True
        return found

    return view.cache.get(("speaks", layer.name), made)
