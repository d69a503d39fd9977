"""What each group of slots brought to a layer's weights and biases, of groups that share no slot.

Under a linear rule it is the group's own sum. Under one that treats each number on its own, each part of an update's
gradient is multiplied by what is left of it at the end (factors.py). Under any other the trajectory is run once with a
share for each group: the whole gradient makes each update's scale, and every group's part of the gradient goes through
it. Shares begin at zero, for no group has W_0. Where a training rounded gradients or weights, which cannot be shared
out, each group is rebuilt by itself, as a filter that leaves nothing else would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.query.stored_arrays import StoredArrays
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import updates
from dualform.query.weights.factors import factors_of
from dualform.query.weights.rebuilt_weights import (
    RebuiltWeights,
    joined_blocks,
    recorded,
    recorded_without_slots,
)
from dualform.query.weights.recorded_blocks import holders_of
from dualform.query.weights.rounding_gradients import rounding_gradients
from dualform.query.weights.slot_gradients import Holder, SlotGradients
from dualform.query.weights.trajectory import start_of
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules import State, advanced, updated
from dualform.rules.half_precision_rule import HalfPrecisionRule
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

Numbers = Mapping[str, NDArray[np.int64]]
"""By layer, int64[entries]: the group of each entry of the layer, and of others that hold a parameter of it; the number
of groups for an entry in none of them."""

_KIND = "group weights 3"


@dataclass(frozen=True)
class CachedWeights:
    """Weights of groups, as a cache counts them."""

    groups: list[RebuiltWeights]

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in self.groups)


def group_weights(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    """Weights and biases of each group of slots, without W_0; of a layer that is on disk."""
    every = {name: mask.selection(view, view.snapshot.layer(name), None, check) for name in numbers}
    blocks = dict[str, Doubles]()
    for block in layer.parameters:
        holders = holders_of(view, layer, block, every[layer.name], every)
        rules = BlockRules(view.snapshot, block)
        if rules.linear:
            made = _sums
        elif rounds_nothing(view, block, holders):
            made = _left if rules.first.commutes_with == "entries" else _shares
        else:
            return _one_by_one(view, layer, numbers, groups, at_step, check)
        found = made(view, block, holders, [numbers[own.name] for own, _, _ in holders], groups, at_step, check)
        blocks[block.block_name] = found.swapaxes(-1, -2) if block.transposed else found
    return [
        joined_blocks(layer, {name: own[group] for name, own in blocks.items()}, Status("exact"), 0.0)
        for group in range(groups)
    ]


def kept_group_weights(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    """As `group_weights`, from beside the keys where they were made before."""
    place = _place(view, layer, numbers, at_step)
    shape = (groups, layer.d_out, layer.weight_width)
    has_bias = bool(layer.biases)
    if place and (held := place.read((np.float64, shape), (np.float64, (groups, layer.d_out)))) is not None:
        weight, bias = held
        return [RebuiltWeights(weight[group], bias[group] if has_bias else None) for group in range(groups)]
    found = group_weights(view, layer, numbers, groups, at_step, check)
    if place:
        biases = [np.zeros(layer.d_out) if own.bias is None else own.bias for own in found]
        place.write(np.stack([own.weight for own in found]), np.stack(biases))
    return found


def _place(view: View, layer: Layer, numbers: Numbers, at_step: int | None) -> StoredArrays | None:
    """Where the weights of groups are kept. The tables say how the optimizer moved the weights."""
    said = view.snapshot.tables_digest
    if said is None or not layer.keys or not layer.values:
        return None
    text = f"{said} {layer.name} {at_step}".encode()
    rows = [view.snapshot.keys(layer.name), view.snapshot.values(layer.name)]
    return StoredArrays.of(view.snapshot, _KIND, rows, [np.frombuffer(text, np.uint8), *numbers.values()])


def rounds_nothing(view: View, block: Parameter, holders: Sequence[Holder]) -> bool:
    """Whether neither the block nor a gradient of it was rounded."""
    rules = BlockRules(view.snapshot, block)
    rounded = isinstance(rules.first, HalfPrecisionRule) or any(rules.halves)
    products = any(len(view.products(layer).first) for layer, _, _ in holders)
    return not rounded and not products and not rounding_gradients(view, block.block_name).by_step


def _one_by_one(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    without = recorded_without_slots(view, layer, at_step, check)
    found = []
    digest = xxhash.xxh3_128_hexdigest(b"".join(own.tobytes() for own in numbers.values()))
    for group in range(groups):
        selections = {
            # No SQL reads like this, so no mask has this identity.
            name: Selection(f"group {group} of {digest}", own == group, stored=False)
            for name, own in numbers.items()
        }
        whole = recorded(view, layer, selections[layer.name], at_step, check, selections)
        bias = None if whole.bias is None or without.bias is None else whole.bias - without.bias
        found.append(RebuiltWeights(whole.weight - without.weight, bias))
    return found


def _sums(
    view: View,
    block: Parameter,
    holders: Sequence[Holder],
    numbers: Sequence[NDArray[np.int64]],
    groups: int,
    at_step: int | None,
    check: Check,
) -> Doubles:
    """float64[groups, …]: each group's part of a block under a linear rule, as it is stored."""
    shape = start_of(view, block)[0].shape
    coefficients = [
        view.coefficients(layer, place.block_name, at_step).per_step[view.slot_steps(layer)]
        for layer, place, _ in holders
    ]
    last = view.snapshot.steps - 1
    return SlotGradients(view, holders, shape).of_groups(0, last, numbers, groups, check, coefficients)


def _shares(
    view: View,
    block: Parameter,
    holders: Sequence[Holder],
    numbers: Sequence[NDArray[np.int64]],
    groups: int,
    at_step: int | None,
    check: Check,
) -> Doubles:
    """float64[groups, …]: each group's share of a block under any other rule, as it is stored."""
    # One more has all that is in no group, for all slots together make the scale of an update.
    wanted, groups = groups, groups + any(bool((own == groups).any()) for own in numbers)
    rules = BlockRules(view.snapshot, block)
    whole = State(*start_of(view, block))
    shape = whole.weight.shape
    held = [kind for kind in rules.first.buffers if kind in whole.buffers]
    shared = [State(np.zeros(shape), {kind: np.zeros(shape) for kind in held}) for _ in range(groups)]
    gradients = SlotGradients(view, holders, shape)
    stop = view.snapshot.steps if at_step is None else at_step
    with np.errstate(all="ignore"):  # as where eps is 0: what is not finite stays so in the answer
        for update in updates(view.snapshot, block.block_name, stop):
            rule = rules.at(update.last_step)
            parts = gradients.of_groups(update.first_step, update.last_step, numbers, groups, check)
            parts *= update.factor
            whole, scale = updated(rule, whole, parts.sum(axis=0), update.settings)
            shared = [
                advanced(rule, own, parts[group].copy(), update.settings, scale) for group, own in enumerate(shared)
            ]
    return np.stack([own.weight for own in shared[:wanted]])


def _left(
    view: View,
    block: Parameter,
    holders: Sequence[Holder],
    numbers: Sequence[NDArray[np.int64]],
    groups: int,
    at_step: int | None,
    check: Check,
) -> Doubles:
    """float64[groups, …]: each group's share of a block under a rule that treats each number on its own."""
    shape = start_of(view, block)[0].shape
    gradients, found = SlotGradients(view, holders, shape), np.zeros((groups, *shape))
    with np.errstate(all="ignore"):
        for first, last, factors in factors_of(view, block, holders, at_step, check):
            for group, part in gradients.by_group(first, last, numbers, groups, check).items():
                found[group] += np.multiply(part, factors, out=part)
    return found
