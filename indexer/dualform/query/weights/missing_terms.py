"""Terms that the record lacks: deleted slots, sampled ones, and layers that cannot be rebuilt.

What slots that a budget dropped take from the weights: from the first of them on, the sum over slots is a sample's.

Up to that step every slot is kept, and everything is as exact as it was measured. Of a rule that is run again nothing
can be rebuilt behind it, for every update needs all of its slots.

What slots that were deleted brought to the weights: one sum, which stands like W_0 whatever a mask leaves.

Of a linear rule, the sum and what the optimizer kept of it are known as of one moment, the end of the memory when it
had samples deleted; later updates take both on, as they take W_0 and its buffers. Between the first slot that was
deleted and that moment, nothing tells how much of it there was. A rule that is run again needs all slots of every
update, so that nothing can be rebuilt from the first deleted one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dualform.answers.table import percent
from dualform.query.view import View
from dualform.query.weights.coefficients import BlockRules, rule_of, updates
from dualform.rules import LinearRule, named
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer, Parameter
from dualform.store.weights import BlockSum, DeletedPart


def brought_by_deleted(view: View, block: Parameter, at_step: int | None) -> Doubles | None:
    """What deleted slots brought to a block once `at_step` steps were taken, as its layer uses it; None for nothing.

    Of a linear rule. Between the first of them and the moment of the sum it is taken for nothing, too.
    """
    stop = view.snapshot.steps if at_step is None else at_step
    terms = [_taken_on(view, block, part.at_step, own, stop) for part, own in _sums(view, block, stop)]
    if not terms:
        return None
    found: Doubles = np.add.reduce(terms)
    return found.T if block.transposed else found


def deleted_sum_added(
    view: View, layer: Layer, outside: Mapping[str, Doubles], at_step: int | None
) -> dict[str, Doubles]:
    """By block, all that stands beside W_0: what moved `outside` the record, and what was deleted. Only blocks that
    have any of it.
    """
    found = dict(outside)
    for block in layer.parameters:
        if (own := brought_by_deleted(view, block, at_step)) is not None:
            found[block.block_name] = own + found.get(block.block_name, 0.0)
    return found


def deleted_meanwhile(view: View, layer: Layer, at_step: int) -> DeletedPart | None:
    """What was deleted of a layer that had some of it by a step, and whose sum is known of a later moment."""
    if not _number(view, layer):
        return None
    parts = view.snapshot.deleted
    return next((part for part in parts if part.first_step < at_step < part.at_step), None)


def deleted_meanwhile_note(part: DeletedPart) -> str:
    """What the status says of such a step."""
    return f"what slots brought that were deleted is known as of the end alone, once {part.at_step} steps were taken."


def deletion_note(view: View, layer: Layer, at_step: int) -> str:
    """What the status says of a sum that stands in a layer as of a step; empty where none does."""
    if not (number := _number(view, layer)) or all(part.at_step > at_step for part in view.snapshot.deleted):
        return ""
    return f"{number} of its slots were deleted; what they brought stands as one sum, whatever a mask leaves."


def _number(view: View, layer: Layer) -> int:
    """How many slots were deleted of a layer and of those that it shares a parameter with."""
    return sum(other.deleted for other in view.holders(layer.stored.parameters) or [layer.stored])


def _sums(view: View, block: Parameter, stop: int) -> Iterator[tuple[DeletedPart, BlockSum]]:
    for part in view.snapshot.deleted:
        if part.at_step <= stop and block.block_name in part.sums:
            yield part, part.sums[block.block_name]


def _taken_on(view: View, block: Parameter, at_step: int, own: BlockSum, stop: int) -> Doubles:
    """A sum as of `at_step` once the updates from there up to `stop` were made, the way round that it is stored."""
    rule = rule_of(view.snapshot, block.block_name)
    assert isinstance(rule, LinearRule), "of others no sum is kept"
    later = [update for update in updates(view.snapshot, block.block_name, stop) if update.last_step >= at_step]
    factors = rule.coefficients(later, stop, bool(own.buffers))
    found: Doubles = factors.initial * own.weight
    for kind, factor in factors.buffers.items():
        found = found + factor * own.buffers[kind]
    return found


def first_sampled_step(view: View, layer: Layer) -> int | None:
    """The first step that lacks slots of a layer, or of one that it shares a parameter with; None where none does."""
    dropped = view.snapshot.dropped
    return min((dropped[space].first_step for space in _spaces(view, layer) if space in dropped), default=None)


def _why_lost(view: View, layer: Layer, stop: int) -> str:
    """Why a layer cannot be rebuilt as of a step for what was deleted or dropped, one sentence; empty where it can."""
    whose = (block.block_name for block in layer.parameters if not BlockRules(view.snapshot, block).linear)
    if (block := next(whose, None)) is None:
        return ""
    needs = f"{view.snapshot.optimizer_of(block).name}'s updates are made of all."
    deleted = min((part.first_step for part in view.snapshot.deleted), default=stop)
    if deleted < stop and (number := _number(view, layer)):
        return f"{number} of its slots were deleted, the first of step {deleted}, and {needs}"
    sampled = first_sampled_step(view, layer)
    if sampled is None or sampled >= stop:
        return ""
    return f"{sampled_note(view, layer)}, from step {sampled} on, and {needs}"


def sampled_note(view: View, layer: Layer) -> str:
    """What share of a layer's slots of all steps is kept, whatever step is asked for, without a full stop."""
    share = view.snapshot.share(_spaces(view, layer))
    return f"its slots are a sample of {percent(share)} of those of all steps, kept within a budget"


def _spaces(view: View, layer: Layer) -> list[str]:
    """Of the layer, and of those that hold one of its blocks."""
    return list(dict.fromkeys([layer.space, *(other.space for other in view.holders(layer.stored.parameters))]))


def why_scores_only(view: View, layer: Layer, at_step: int | None = None) -> str:
    """Why a layer cannot be rebuilt as of a step, None for the end, in one sentence; empty where it can."""
    if not layer.keys:
        return "neither keys nor error signals were recorded (keys=False)."
    for block in layer.parameters:
        if reason := _why_not_rebuilt(view, block):
            return reason
    if not layer.values:
        return f"{layer.reason or 'its error signals were not recorded (values=False)'}."
    return _why_lost(view, layer, view.snapshot.steps if at_step is None else at_step)


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
