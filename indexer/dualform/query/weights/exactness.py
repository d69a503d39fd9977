"""Whether the record of a layer explains its weights, and if not, why not."""

from __future__ import annotations

from dualform.answers import Grade
from dualform.errors import Inexact
from dualform.query.view import View
from dualform.store.batch import TOLERANCE
from dualform.store.layer import Layer


def why_not(view: View, layer: Layer, at_step: int | None = None) -> str:
    """Why the layer cannot be rebuilt as of `at_step`, one sentence; empty where it can.

    A defect counts from the step where it happened: the network before that step can be rebuilt.
    """
    if not layer.keys:
        return "neither keys nor error signals were recorded (keys=False)."
    if not view.snapshot.rule:
        reason = view.snapshot.reason or f"the optimizer {view.snapshot.optimizer} is not linear in the gradients"
        return f"{reason.rstrip('.')}."
    if not layer.values:
        return f"{layer.reason or 'its error signals were not recorded (values=False)'}."
    last = view.snapshot.steps if at_step is None else at_step
    tables = view.tables(layer.space)
    defect = tables.execute(
        "SELECT step, reason FROM defects WHERE layer = ? AND step < ? ORDER BY step LIMIT 1", [layer.name, last]
    ).fetchone()
    if defect:
        return f"{defect[1].rstrip('.')} (from step {defect[0]} on)."
    worst = tables.execute(
        "SELECT step, residual FROM factors WHERE list_contains(?, parameter) AND step < ? AND NOT residual <= ? "
        "ORDER BY step LIMIT 1",
        [[parameter.name for parameter in layer.parameters], last, TOLERANCE],
    ).fetchone()
    if worst:
        return (
            f"the recorded slots leave {worst[1]:.1e} of the gradient of step {worst[0]} unexplained "
            f"(tolerance {TOLERANCE:.0e})."
        )
    return ""


def grade(view: View, layer: Layer, at_step: int | None) -> Grade:
    """How exact the record of a layer is as of `at_step`."""
    reason = why_not(view, layer, at_step)
    if not reason:
        return Grade("exact")
    return Grade("off" if _can_be_rebuilt(view, layer) else "scores only", reason=reason)


def _can_be_rebuilt(view: View, layer: Layer) -> bool:
    return layer.keys and layer.values and view.snapshot.linear


def require(view: View, layer: Layer, at_step: int | None, allow_inexact: bool) -> Grade:
    """The grade. Raises Inexact where the layer cannot be rebuilt, or is not exact and need not be answered so."""
    found = grade(view, layer, at_step)
    reason = found.reason
    if reason and not (allow_inexact and found.name != "scores only"):
        raise Inexact(
            f"layer {layer.name!r} cannot be rebuilt: {reason}",
            hint="Its scores (topk, group_sum) are exact all the same." if layer.keys else "Record it with its keys.",
            field="layer",
        )
    return found
