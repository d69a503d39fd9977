"""The part of a layer's weights that some slots brought: sum_t a_t delta_t x_t^T, in float64.

Shapes: T slots, m selected, b of a block, R stored rows of which r belong to the selected slots, d_in, d_out.

A memory of several shards is summed shard after shard, so that each may be elsewhere (dualform.query.shards).

Everything is float64. Float32 products over short blocks would cost less, but their last bits depend on the number of
threads, and so would the float32 that an output is rounded to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.workers import cores, share
from dualform.query.stored_sum import StoredSum
from dualform.query.sums.runs import added_in_order, begins
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import weighs_no_slot
from dualform.query.weights.outer_products import outer_product
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter
from dualform.store.part import Part, shard_names
from dualform.store.rows import Keys, Rows
from dualform.store.snapshot import Snapshot

BUDGET = 256 << 20
"""Bytes of values that are added up by stored row at once; more are made column range by column range."""
_COLUMNS = 128
"""Of values that are added up together, however many cores there are, for it decides the last bits."""
_PIECE = 512
"""Slots whose values are added to those of their rows at once, within the processor's cache."""
BLOCK_BYTES = 16 << 20
"""Of keys or values in float64: products are as fast as on larger ones, and the cache holds them."""
KIND = f"slot sum 1 of {BUDGET}, {_COLUMNS}, {_PIECE}, {BLOCK_BYTES}"
"""Names what is kept on disk: all that decides the last bits of a sum."""


@dataclass(frozen=True, eq=False)
class SlotCoefficients:
    """The coefficients of the selected slots, less those whose gradient the optimizer had not used by a step."""

    slots: NDArray[np.int64]
    """int64[m], ascending: entries of the layer."""
    weights: NDArray[np.float64]
    """float64[weights, m]: coefficient of each slot, by weight of the layer."""
    biases: NDArray[np.float64]
    """float64[biases, m]: by bias."""


@dataclass(frozen=True, eq=False)
class SlotSum:
    weight: NDArray[np.float64]
    """float64[d_out, d_in], or of several blocks along a diagonal, the blocks under one another."""
    biases: NDArray[np.float64]
    """float64[biases, d_out]."""

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.biases.nbytes


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
        slots = slot_coefficients(view, layer, selection, at_step)
        shards = len(shard_names(view.snapshot))
        if shards == 1:
            return _summed(view.snapshot, layer, slots, check)
        parts = (view.cache.get(("part", n), partial(Part, view.snapshot, n)) for n in range(shards))
        return _added(layer, (sum_of_shard(part, layer, slots, check) for part in parts))

    return view.cache.get(("slot sum", layer.name, selection.identity, at_step), made, check)


def sum_of_shard(part: Part, layer: Layer, slots: SlotCoefficients, check: Check) -> SlotSum:
    """What those of the selected slots brought that one shard has."""
    own, there = part.own(layer.name, slots.slots)
    return _summed(part, layer, SlotCoefficients(own, slots.weights[:, there], slots.biases[:, there]), check)


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


def _summed(memory: Snapshot, layer: Layer, slots: SlotCoefficients, check: Check) -> SlotSum:
    """From beside the keys where it was made before; never of all slots, by which `verify` holds the record itself."""
    keys, values, found = memory.keys(layer.name), memory.values(layer.name), _nothing(layer)
    place = None
    if len(slots.slots) < keys.entries:
        place = StoredSum.of(memory, KIND, [keys, values], [slots.slots, slots.weights, slots.biases])
    held = place.read((np.float64, found.weight.shape), (np.float64, found.biases.shape)) if place else None
    if held is not None:
        return SlotSum(*held)
    _add(found, layer, keys, values, slots, check)
    if place:
        place.write(found.weight, found.biases)
    return found


def _add(found: SlotSum, layer: Layer, keys: Keys, values: Rows, slots: SlotCoefficients, check: Check) -> None:
    columns = [slice(weight.start, weight.stop) for weight in layer.weights]
    if keys.row_of_entry is not None and layer.groups == 1:
        rows, numbers = np.unique(keys.row_of_entry[slots.slots], return_inverse=True)
        if 2 * len(rows) <= len(numbers):
            _by_row(found, columns, keys, values, slots, rows, numbers, check)
            return
    _by_slot(found, columns, layer.groups, keys, values, slots, check)


def _by_slot(
    found: SlotSum,
    columns: Sequence[slice],
    groups: int,
    keys: Keys,
    values: Rows,
    slots: SlotCoefficients,
    check: Check,
) -> None:
    """One product a block of slots and weight."""
    size = block_size(max(keys.width, values.width))
    wide_keys, wide_values = np.empty((size, keys.width)), np.empty((size, values.width))
    scaled, made, biases = np.empty_like(wide_values), np.empty_like(found.weight), found.biases
    for start, stop, part in blocks(slots.slots, keys.entries, size):
        check()
        chosen = places(slots.slots[part], start, stop)
        own, other = wide_values[: part.stop - part.start], wide_keys[: part.stop - part.start]
        np.copyto(own, values.block(start, stop)[chosen])
        np.copyto(other, keys.entry_block(start, stop)[chosen])
        biases += slots.biases[:, part] @ own
        for coefficient, within in zip(slots.weights, columns, strict=True):
            times = np.multiply(own, coefficient[part, None], out=scaled[: len(own)])
            if groups > 1:
                found.weight[:, within] += outer_product(times, other, groups)[:, within]
            else:
                found.weight[:, within] += np.matmul(times.T, other[:, within], out=made[:, within])


def _by_row(
    found: SlotSum,
    columns: Sequence[slice],
    keys: Keys,
    values: Rows,
    slots: SlotCoefficients,
    rows: NDArray[np.int64],
    numbers: NDArray[np.int64],
    check: Check,
) -> None:
    """Values of slots that share a key are added up first, in slot order: one product a block of stored rows.

    Ranges of the values are added up side by side, for this waits for memory.
    """
    each = 8 * max(1, len(rows)) * len(columns)
    size = max(1, min(_COLUMNS, BUDGET // each))
    workers = max(1, min(cores(), BUDGET // (each * size)))

    def add(_: int, first: int) -> None:
        last = min(first + size, values.width)
        own = np.zeros((len(columns), len(rows), last - first))
        for start, stop, part in blocks(slots.slots, keys.entries, _PIECE):
            check()
            order = np.argsort(numbers[part], kind="stable")
            chosen, sorted_numbers = slots.slots[part][order] - start, numbers[part][order]
            wide = values.block(start, stop)[chosen, first:last].astype(np.float64)
            found.biases[:, first:last] += slots.biases[:, part][:, order] @ wide
            runs = begins(sorted_numbers)
            for total, coefficient in zip(own, slots.weights, strict=True):
                total[sorted_numbers[runs]] += added_in_order(wide * coefficient[part][order, None], runs)
        for start, stop, part in blocks(rows, keys.rows, block_size(keys.width)):
            check()
            other = keys.block(start, stop)[places(rows[part], start, stop)].astype(np.float64)
            for total, within in zip(own, columns, strict=True):
                found.weight[first:last, within] += total[part].T @ other[:, within]

    share(range(0, values.width, size), add, workers)


def block_size(width: int) -> int:
    """Fixed for a layer, for it decides the last bits."""
    return int(np.clip(BLOCK_BYTES // (8 * max(1, width)), 256, 8192))


def blocks(ids: NDArray[np.int64], count: int, size: int) -> Iterator[tuple[int, int, slice]]:
    """Ranges of `size` of `count` rows that hold some of the ascending ids, each with where those lie in `ids`."""
    cuts = np.searchsorted(ids, np.arange(0, count + size, size)).tolist()
    for number, (low, high) in enumerate(pairwise(cuts)):
        if low < high:
            yield number * size, min((number + 1) * size, count), slice(low, high)


def places(ids: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64] | slice:
    """The ids counted from `start`; a slice, which copies nothing, where they are all of the range."""
    return slice(None) if len(ids) == stop - start else ids - start
