"""What slots that were deleted brought to the weights: one sum, which stands like W_0 whatever a mask leaves.

Of a linear rule, the sum and what the optimizer kept of it are known as of one moment, the end of the memory when it
had samples deleted; later updates take both on, as they take W_0 and its buffers. Between the first slot that was
deleted and that moment, nothing tells how much of it there was. A rule that is run again needs all slots of every
update, so that nothing can be rebuilt from the first deleted one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dualform.query.view import View
from dualform.query.weights.block_rules import BlockRules, rule_of
from dualform.query.weights.coefficients import updates
from dualform.rules import LinearRule
from dualform.rules.update_rule import Doubles
from dualform.store.deleted_sums import BlockSum, DeletedPart
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


def brought(view: View, block: Parameter, at_step: int | None) -> Doubles | None:
    """What deleted slots brought to a block once `at_step` steps were taken, as its layer uses it; None for nothing.

    Of a linear rule. Between the first of them and the moment of the sum it is taken for nothing, too.
    """
    stop = view.snapshot.steps if at_step is None else at_step
    terms = [_taken_on(view, block, part.at_step, own, stop) for part, own in _sums(view, block, stop)]
    if not terms:
        return None
    found: Doubles = np.add.reduce(terms)
    return found.T if block.transposed else found


def added(view: View, layer: Layer, outside: Mapping[str, Doubles], at_step: int | None) -> dict[str, Doubles]:
    """By block, all that stands beside W_0: what moved `outside` the record, and what was deleted. Only blocks that
    have any of it.
    """
    found = dict(outside)
    for block in layer.parameters:
        if (own := brought(view, block, at_step)) is not None:
            found[block.block_name] = own + found.get(block.block_name, 0.0)
    return found


def why_lost(view: View, layer: Layer, at_step: int) -> str:
    """Why a layer cannot be rebuilt as of a step for what was deleted, one sentence; empty where it can."""
    first = min((part.first_step for part in view.snapshot.deleted), default=at_step)
    if first >= at_step or not _number(view, layer):
        return ""
    for block in layer.parameters:
        if not BlockRules(view.snapshot, block).linear:
            optimizer = view.snapshot.optimizer_of(block.block_name).name
            return (
                f"{_number(view, layer)} of its slots were deleted, the first of step {first}, and {optimizer}'s "
                "updates are made of all."
            )
    return ""


def lost_meanwhile(view: View, layer: Layer, at_step: int) -> DeletedPart | None:
    """What was deleted of a layer that had some of it by a step, and whose sum is known of a later moment."""
    if not _number(view, layer):
        return None
    parts = view.snapshot.deleted
    return next((part for part in parts if part.first_step < at_step < part.at_step), None)


def said_meanwhile(part: DeletedPart) -> str:
    """What the status says of such a step."""
    return f"what slots brought that were deleted is known as of the end alone, once {part.at_step} steps were taken."


def said(view: View, layer: Layer, at_step: int) -> str:
    """What the status says of a sum that stands in a layer as of a step; empty where none does."""
    if not (number := _number(view, layer)) or all(part.at_step > at_step for part in view.snapshot.deleted):
        return ""
    return f"{number} of its slots were deleted; what they brought stands as one sum, whatever a mask leaves."


def _number(view: View, layer: Layer) -> int:
    """How many slots were deleted of a layer and of those that it shares a parameter with."""
    own = {block.block_name for block in layer.stored.parameters}
    holders = [layer.stored] if not own else view.snapshot.layers.values()
    sharing = [other for other in holders if not own or not own.isdisjoint(b.block_name for b in other.parameters)]
    return sum(other.deleted for other in sharing)


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
