"""What slots that a budget dropped take from the weights: from the first of them on, the sum over slots is a sample's.

Up to that step every slot is kept, and everything is as exact as it was measured. Of a rule that is run again nothing
can be rebuilt behind it, for every update needs all of its slots.
"""

from __future__ import annotations

from dualform.answers.table import percent
from dualform.query.view import View
from dualform.query.weights.block_rules import BlockRules
from dualform.store.layer import Layer


def first_step(view: View, layer: Layer) -> int | None:
    """The first step that lacks slots of a layer, or of one that it shares a parameter with; None where none does."""
    dropped = view.snapshot.dropped
    return min((dropped[space].first_step for space in _spaces(view, layer) if space in dropped), default=None)


def why_lost(view: View, layer: Layer, at_step: int) -> str:
    """Why a layer cannot be rebuilt as of a step for what was dropped, one sentence; empty where it can."""
    first = first_step(view, layer)
    if first is None or first >= at_step:
        return ""
    for block in layer.parameters:
        if not BlockRules(view.snapshot, block).linear:
            optimizer = view.snapshot.optimizer_of(block.block_name).name
            return f"{said(view, layer)}, from step {first} on, and {optimizer}'s updates are made of all."
    return ""


def said(view: View, layer: Layer) -> str:
    """What share of a layer's slots of all steps is kept, whatever step is asked for, without a full stop."""
    share = view.snapshot.share(_spaces(view, layer))
    return f"its slots are a sample of {percent(share)} of those of all steps, kept within a budget"


def _spaces(view: View, layer: Layer) -> list[str]:
    """Of the layer, and of those that hold one of its blocks."""
    own = {block.block_name for block in layer.stored.parameters}
    holders = view.snapshot.layers.values()
    sharing = [o.space for o in holders if not own.isdisjoint(b.block_name for b in o.parameters)]
    return list(dict.fromkeys([layer.space, *sharing]))
