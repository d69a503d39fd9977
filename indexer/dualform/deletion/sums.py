"""What slots brought to the parameters, run once through the update rule from zero: the sum that is kept of them.

Only of linear rules, whose states add up: that of all slots is that of some and that of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dualform.deletion.targets import Targets, is_linear, touched_blocks
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import rule_of
from dualform.query.weights.coefficients import updates
from dualform.query.weights.outer_products import outer_product
from dualform.query.weights.scores_only import why_scores_only
from dualform.query.weights.slot_products import block_size
from dualform.rules import State, advanced
from dualform.rules.update_rule import Doubles
from dualform.store.deleted_sums import BlockSum
from dualform.store.entries import Integers
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


def sums_of(view: View, targets: Targets, check: Check) -> dict[str, BlockSum]:
    """By block, what the picked slots brought up to the end of the memory, with what was deleted before.

    Of blocks that can be rebuilt, and will be.
    """
    found = dict[str, BlockSum]()
    for part in view.snapshot.deleted:  # of one folder there is one at most, as of the same end
        found |= part.sums
    blocks = touched_blocks(view, targets.entries)
    for layer in view.snapshot.layers.values():
        if why_scores_only(view, layer) or not is_linear(view, layer):
            continue
        for block in layer.parameters:
            if block.block_name in blocks:
                blocks.remove(block.block_name)
                own = _brought(view, block, targets.entries, check)
                before = found.get(block.block_name)
                found[block.block_name] = own if before is None else _added(own, before)
    return found


def _added(one: BlockSum, other: BlockSum) -> BlockSum:
    return BlockSum(one.weight + other.weight, {kind: own + other.buffers[kind] for kind, own in one.buffers.items()})


def _brought(view: View, block: Parameter, entries: Mapping[str, Integers], check: Check) -> BlockSum:
    holders = [
        _TargetTerms(view, layer, place, entries[layer.name])
        for layer in view.snapshot.layers.values()
        if layer.name in entries
        for place in layer.parameters
        if place.block_name == block.block_name
    ]
    rule = rule_of(view.snapshot, block.block_name)
    shape = block.stored_block_of(view.stored_weights("initial")[block.name]).shape
    held = view.snapshot.buffers().get(block.name, {})
    state = State(np.zeros(shape), {kind: np.zeros(shape) for kind in rule.buffers if kind in held})
    for update in updates(view.snapshot, block.block_name, view.snapshot.steps):
        check()
        gradient = np.zeros(shape)
        for terms in holders:
            terms.add(gradient, update.first_step, update.last_step)
        gradient *= update.factor
        state = advanced(rule, state, gradient, update.settings, None)
    return BlockSum(state.weight, dict(state.buffers))


@dataclass(frozen=True, eq=False)
class _TargetTerms:
    """What some entries of a layer bring to one of its blocks."""

    view: View
    layer: Layer
    place: Parameter
    entries: Integers
    """Ascending, and so are their steps."""

    def add(self, gradient: Doubles, first_step: int, last_step: int) -> None:
        """Add the gradient of their slots of some steps, both ends included, the way round that a block is stored."""
        steps = self.view.slot_steps(self.layer)[self.entries]
        low, high = np.searchsorted(steps, [first_step, last_step + 1]).tolist()
        size = block_size(max(self.layer.d_in, self.layer.d_out))
        for start in range(low, high, size):
            gradient += self._product(self.entries[start : min(start + size, high)])

    def _product(self, entries: Integers) -> Doubles:
        snapshot, layer, place = self.view.snapshot, self.layer, self.place
        values = snapshot.values(layer.name).take(entries).astype(np.float64)
        if place in layer.biases:
            summed: Doubles = values.sum(0)
            return summed
        keys = snapshot.keys(layer.name).of_entries(entries).astype(np.float64)
        whole = outer_product(values, keys, layer.groups)[:, place.start : place.stop]
        return whole.T if place.transposed else whole
