"""The part of a layer's weights that some slots brought: sum_t a_t delta_t x_t^T, in float64.

Shapes: T slots, m selected, b of a block, R stored rows of which r belong to the selected slots, d_in, d_out.

A memory of several shards is summed shard after shard, so that each may be elsewhere (dualform.query.shards).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dualform.query.stored_arrays import StoredArrays
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import weighs_no_slot
from dualform.query.weights.slot_products import (
    VERSION,
    SlotCoefficients,
    SlotSum,
    add_products,
    block_size,
    blocks,
    places,
)
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter
from dualform.store.part import Part, shard_names
from dualform.store.snapshot import Snapshot

KIND = f"slot sum 2 of {VERSION}"
"""Names what is kept on disk."""


def slot_coefficients(view: View, layer: Layer, selection: Selection, at_step: int | None) -> SlotCoefficients:
    steps = view.slot_steps(layer)[selection.entries]
    stored = layer.stored  # its blocks are what an optimizer updates
    per_step = np.array([_per_step(view, stored, block, at_step) for block in stored.parameters])
    used = (per_step != 0).any(axis=0)[steps]
    own = per_step[:, steps[used]]
    return SlotCoefficients(selection.entries[used], own[: len(layer.weights)], own[len(layer.weights) :])


def _per_step(view: View, layer: Layer, block: Parameter, at_step: int | None) -> NDArray[np.float64]:
    """float64[T]; zeros for a block whose optimizer gives slots no coefficients, which is rebuilt by other means."""
    if weighs_no_slot(view.snapshot, [block]) is not None:
        return np.zeros(view.snapshot.steps)
    return view.coefficients(layer, block.block_name, at_step).per_step


def slot_sum(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> SlotSum:
    """The selected slots' own part of the weights, kept in the cache by mask: shard after shard."""

    def made() -> SlotSum:
        if view.shards is not None and selection.source is not None:
            return _added(layer, view.shards.slot_sums(layer, selection, at_step, check))
        slots, stored = slot_coefficients(view, layer, selection, at_step), selection.stored
        shards = len(shard_names(view.snapshot))
        if shards == 1:
            return _summed(view.snapshot, layer, slots, check, stored)
        parts = (view.cache.get(("part", n), partial(Part, view.snapshot, n)) for n in range(shards))
        return _added(layer, (sum_of_shard(part, layer, slots, check, stored) for part in parts))

    return view.cache.get(("slot sum", layer.name, selection.identity, at_step), made, check)


def is_at_hand(view: View, layer: Layer, selection: Selection, at_step: int | None, slots: SlotCoefficients) -> bool:
    """Whether `slot_sum`, of a memory of one shard, would find its sum made; `slots` are what it would add up."""
    if view.cache.holds(("slot sum", layer.name, selection.identity, at_step)):
        return True
    place = _place(view.snapshot, layer, slots)
    return place is not None and place.path.exists()


def outputs_of_slot_sum(
    memory: Snapshot, layer: Layer, slots: SlotCoefficients, outputs: NDArray[np.int64], check: Check
) -> SlotSum:
    """As `slot_sum` has them, to the last bit, some outputs alone; what stands at others is no sum."""
    found, keys, values = _nothing(layer), memory.keys(layer.name).passing(), memory.values(layer.name).passing()
    add_products(found, layer, keys, values, slots, check, outputs)
    return found


def sum_of_shard(part: Part, layer: Layer, slots: SlotCoefficients, check: Check, stored: bool = True) -> SlotSum:
    """What those of the selected slots brought that one shard has; `stored`: kept on disk."""
    own, there = part.own(layer.name, slots.slots)
    mine = SlotCoefficients(own, slots.weights[:, there], slots.biases[:, there])
    return _summed(part, layer, mine, check, stored)


def _added(layer: Layer, parts: Iterable[SlotSum]) -> SlotSum:
    found = _nothing(layer)
    for part in parts:
        found.weight[:] += part.weight
        found.biases[:] += part.biases
    return found


def _nothing(layer: Layer) -> SlotSum:
    return SlotSum(np.zeros((layer.d_out, layer.weight_width)), np.zeros((len(layer.biases), layer.d_out)))


def bias_sum(
    view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check, shared_with: Layer | None = None
) -> NDArray[np.float64]:
    """float64[d_out]: the selected slots' own part of the layer's biases, added up; kept in the cache by mask.

    `shared_with`: only of the biases that this layer holds as well.
    """
    names = {bias.block_name for bias in (shared_with or layer).biases}
    own = [number for number, bias in enumerate(layer.biases) if bias.block_name in names]

    def summed() -> NDArray[np.float64]:
        values, slots = view.snapshot.values(layer.name), slot_coefficients(view, layer, selection, at_step)
        found, coefficients = np.zeros(layer.d_out), slots.biases[own].sum(axis=0)
        for start, stop, part in blocks(slots.slots, values.rows, block_size(values.width)):
            check()
            chosen = values.block(start, stop)[places(slots.slots[part], start, stop)]
            found += coefficients[part] @ chosen.astype(np.float64)
        return found

    return view.cache.get(("bias sum", layer.name, selection.identity, at_step, tuple(own)), summed, check)


def _summed(memory: Snapshot, layer: Layer, slots: SlotCoefficients, check: Check, stored: bool) -> SlotSum:
    """From beside the keys where it was made before, unless it is not to be `stored`."""
    keys, values, found = memory.keys(layer.name), memory.values(layer.name), _nothing(layer)
    place = _place(memory, layer, slots) if stored else None
    held = place.read((np.float64, found.weight.shape), (np.float64, found.biases.shape)) if place else None
    if held is not None:
        return SlotSum(*held)
    add_products(found, layer, keys, values, slots, check)
    if place:
        place.write(found.weight, found.biases)
    return found


def _place(memory: Snapshot, layer: Layer, slots: SlotCoefficients) -> StoredArrays | None:
    rows = [memory.keys(layer.name), memory.values(layer.name)]
    return StoredArrays.of(memory, KIND, rows, [slots.slots, slots.weights, slots.biases])
