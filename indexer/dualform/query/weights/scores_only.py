"""Why a layer cannot be rebuilt at all, so that its scores are all that it answers."""

from __future__ import annotations

from dualform.query.view import View
from dualform.query.weights import deleted_terms, dropped_terms
from dualform.rules import named
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


def why_scores_only(view: View, layer: Layer, at_step: int | None = None) -> str:
    """Why a layer cannot be rebuilt as of a step, None for the end, in one sentence; empty where it can."""
    if not layer.keys:
        return "neither keys nor error signals were recorded (keys=False)."
    for block in layer.parameters:
        if reason := _why_not_rebuilt(view, block):
            return reason
    if not layer.values:
        return f"{layer.reason or 'its error signals were not recorded (values=False)'}."
    stop = view.snapshot.steps if at_step is None else at_step
    return deleted_terms.why_lost(view, layer, stop) or dropped_terms.why_lost(view, layer, stop)


def _why_not_rebuilt(view: View, block: Parameter) -> str:
    """As `why_scores_only`, of one block."""
    optimizer = view.snapshot.optimizer_of(block.block_name)
    if not optimizer.rule:
        reason = optimizer.reason or f"there is no update rule for {optimizer.name}"
        return f"{reason.rstrip('.')}."
    rule = named(optimizer.rule)
    if rule is None:
        return f"its update rule {optimizer.rule!r} is not known here (dualform.rules.register tells of it)."
    axes = view.stored_weights("initial")[block.name].ndim if rule.of_matrices else 0
    reason = rule.why_not_block(bool(block.rows or block.columns), axes)
    return f"{optimizer.name} {reason}." if reason else ""
