"""Sums over slots of coefficient, value and key, and the value of each slot.

The value that each slot has of its own, whatever weighs it: its coefficient, for every part of the layer's weight.

Shapes: m slots, H entries of the layer, T recorded steps, w parts of its weight.

A weight may have parts that the optimizer updates one by one, as an LSTM's of its inputs and of its state. Their slots
have one value where the parts moved alike: settings of the same numbers, and gradient factors, which are measured, as
far apart as the status of the layer allows. A part to which no slot of a step brought anything says nothing of that
step: its gradient is zero, and no factor can be told from it.

The part of a layer's weights that some slots brought: sum_t a_t delta_t x_t^T, in float64.

Shapes: T slots, m selected, b of a block, R stored rows of which r belong to the selected slots, d_in, d_out.

A memory of several shards is summed shard after shard, so that each may be elsewhere (dualform.query.shards).

Sums of products of some slots' values and keys, each slot with a coefficient: the arithmetic of `slot_sum`.

Shapes: T slots, m selected, b of a block, R stored rows of which r belong to the selected slots, d_in, d_out.

Everything is float64. Float32 products over short blocks would cost less, but their last bits depend on the number of
threads, and so would the float32 that an output is rounded to.

Sums of outer products of values and keys, as a layer's weight is made of them.

Shapes: m slots, d_in and d_out of a layer, G of its groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import Inexact
from dualform.kernels.workers import cores, divide
from dualform.query.groups import StoredArrays
from dualform.query.score.key_rows import key_norms
from dualform.query.sums.key_sums import added_in_order, begins
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import updates, weighs_no_slot
from dualform.query.weights.exactness import BFLOAT16, EXACT
from dualform.query.where.mask import Selection
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer, Parameter
from dualform.store.reading.snapshot import Part, Snapshot, shard_names
from dualform.store.rows import Keys, Rows


def outer_product(values: Doubles, keys: Doubles, groups: int) -> Doubles:
    """float64[d_out, d_in / G]: the sum over slots of value key^T, of values [m, d_out] and keys [m, d_in].

    Of a weight of several blocks along its diagonal, the blocks under one another.
    """
    blocks = values.reshape(len(values), groups, -1).transpose(1, 2, 0)
    summed: Doubles = np.matmul(blocks, keys.reshape(len(keys), groups, -1).transpose(1, 0, 2))
    return summed.reshape(values.shape[1], -1)


BUDGET = 256 << 20
"""Bytes of values that are added up by stored row at once; more are made column range by column range."""
_COLUMNS = 128
"""Of values that are added up together, however many cores there are, for it decides the last bits."""
_PIECE = 512
"""Slots whose values are added to those of their rows at once, within the processor's cache."""
BLOCK_BYTES = 16 << 20
"""Of keys or values in float64: products are as fast as on larger ones, and the cache holds them."""
_RANGE, _PRODUCT = 8192, 512
"""Entries, or stored rows, whose products are added up before they join the sum, and how many share a product: a number
is the sum of so few at a time that rounding errors grow with hundreds of additions, not with the slots."""
TILE = 64
"""Outputs of a product: the numbers of a few outputs have the bits that they have among all."""
VERSION = f"{BUDGET}, {_COLUMNS}, {_PIECE}, {BLOCK_BYTES}, {_RANGE}, {_PRODUCT}, {TILE}"
"""All that decides the last bits of a sum."""


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


def add_products(
    found: SlotSum,
    layer: Layer,
    keys: Keys,
    values: Rows,
    slots: SlotCoefficients,
    check: Check,
    outputs: NDArray[np.int64] | None = None,
) -> None:
    """`outputs`: those that are asked for; None for all. Of others, some may be added up with them."""
    columns = [slice(weight.start, weight.stop) for weight in layer.weights]
    # A product has other last bits with numbers that do not lie side by side, on some processors.
    slots = SlotCoefficients(slots.slots, np.ascontiguousarray(slots.weights), np.ascontiguousarray(slots.biases))
    if layer.groups > 1:
        _by_group(found, layer.groups, keys, values, slots, check)
    elif (shared := _shared_rows(keys, slots)) is not None:
        _by_row(found, columns, keys, values, slots, *shared, outputs, check)
    else:
        _by_slot(found, columns, keys, values, slots, _tiles(values.width, outputs), check)


def _shared_rows(keys: Keys, slots: SlotCoefficients) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """int64[r], the stored rows of the slots, and int64[m], the place of each slot's among them; None where few slots
    share one.
    """
    if keys.row_of_entry is None:
        return None
    rows, numbers = np.unique(keys.row_of_entry[slots.slots], return_inverse=True)
    return (rows, numbers) if 2 * len(rows) <= len(numbers) else None


def _tiles(width: int, outputs: NDArray[np.int64] | None, size: int = TILE) -> list[slice]:
    firsts = np.arange(0, width, size) if outputs is None else np.unique(outputs // size) * size
    return [slice(first, min(first + size, width)) for first in firsts.tolist()]


def _by_group(found: SlotSum, groups: int, keys: Keys, values: Rows, slots: SlotCoefficients, check: Check) -> None:
    """One product a block of slots, of a weight of several blocks along its diagonal."""
    (coefficient,) = slots.weights
    for start, stop, part in blocks(slots.slots, keys.entries, block_size(max(keys.width, values.width))):
        check()
        chosen = places(slots.slots[part], start, stop)
        own = values.block(start, stop)[chosen].astype(np.float64)
        other = keys.entry_block(start, stop)[chosen].astype(np.float64)
        found.biases[:] += slots.biases[:, part] @ own
        found.weight[:] += outer_product(own * coefficient[part, None], other, groups)


def _by_slot(
    found: SlotSum,
    columns: Sequence[slice],
    keys: Keys,
    values: Rows,
    slots: SlotCoefficients,
    tiles: Sequence[slice],
    check: Check,
) -> None:
    """One product a few slots, tile and weight."""
    size, count = _sizes(max(keys.width, values.width))
    wide, scaled = np.empty((2, count * TILE))
    others, made, biases = np.empty((count, keys.width)), np.empty(TILE * keys.width), np.zeros_like(found.biases)
    weight = np.zeros_like(found.weight)
    for start, stop, part in blocks(slots.slots, keys.entries, size):
        check()
        of_keys = keys.entry_block(start, stop)
        check()  # either may have to be read
        of_values = values.block(start, stop)
        for low in range(part.start, part.stop, count):
            piece = slice(low, min(low + count, part.stop))
            ids = slots.slots[piece] - start
            chosen = slice(int(ids[0]), int(ids[-1]) + 1) if ids[-1] - ids[0] == len(ids) - 1 else ids
            other = others[: len(ids)]
            np.copyto(other, of_keys[chosen])
            for tile in tiles:
                check()
                # Of one shape and layout each, whichever tiles are asked for: so are their last bits.
                shape = len(ids), tile.stop - tile.start
                own, times = (room[: shape[0] * shape[1]].reshape(shape) for room in (wide, scaled))
                np.copyto(own, of_values[chosen, tile])
                biases[:, tile] += slots.biases[:, piece] @ own
                for coefficient, within in zip(slots.weights, columns, strict=True):
                    np.multiply(own, coefficient[piece, None], out=times)
                    product = made[: shape[1] * (within.stop - within.start)].reshape(shape[1], -1)
                    weight[tile, within] += np.matmul(times.T, other[:, within], out=product)
        for tile in tiles:
            for total, sums in ((found.weight, weight), (found.biases.T, biases.T)):
                total[tile] += sums[tile]
                sums[tile] = 0


def _by_row(
    found: SlotSum,
    columns: Sequence[slice],
    keys: Keys,
    values: Rows,
    slots: SlotCoefficients,
    rows: NDArray[np.int64],
    numbers: NDArray[np.int64],
    outputs: NDArray[np.int64] | None,
    check: Check,
) -> None:
    """Values of slots that share a key are added up first, in slot order: one product a few stored rows.

    Ranges of the values are added up side by side, for this waits for memory.
    """
    length, count = _sizes(keys.width)
    each = 8 * max(1, len(rows)) * len(columns)
    size = max(1, min(_COLUMNS, BUDGET // each))
    workers = max(1, min(cores(), BUDGET // (each * size)))

    def add(_: int, tile: slice) -> None:
        first, last = tile.start, tile.stop
        own = np.zeros((len(columns), len(rows), last - first))
        for start, stop, part in blocks(slots.slots, keys.entries, _PIECE):
            check()
            order = np.argsort(numbers[part], kind="stable")
            chosen, sorted_numbers = slots.slots[part][order] - start, numbers[part][order]
            block = values.block(start, stop)
            check()
            wide = block[chosen, first:last].astype(np.float64)
            found.biases[:, first:last] += slots.biases[:, part][:, order] @ wide
            runs = begins(sorted_numbers)
            for total, coefficient in zip(own, slots.weights, strict=True):
                total[sorted_numbers[runs]] += added_in_order(wide * coefficient[part][order, None], runs)
        for start, stop, part in blocks(rows, keys.rows, length):
            keyed, summed = keys.block(start, stop), np.zeros((last - first, found.weight.shape[1]))
            for low in range(part.start, part.stop, count):
                check()
                piece = slice(low, min(low + count, part.stop))
                other = keyed[rows[piece] - start].astype(np.float64)
                for total, within in zip(own, columns, strict=True):
                    summed[:, within] += total[piece].T @ other[:, within]
            found.weight[first:last] += summed

    divide(_tiles(values.width, outputs, size), add, workers)


def roundings(keys: Keys, values: Rows, slots: SlotCoefficients) -> int:
    """How many roundings a term of a sum goes through at most, its own two products among them."""
    if shared := _shared_rows(keys, slots):
        return _roundings(keys.width, keys.rows) + int(np.bincount(shared[1]).max(initial=0))
    return _roundings(max(keys.width, values.width), keys.entries)


def most_roundings(keys: Keys, values: Rows) -> int:
    """Of `roundings`, whichever slots are added up."""
    found = max(_roundings(width, keys.entries) for width in (keys.width, max(keys.width, values.width)))
    return found + (0 if keys.row_of_entry is None else int(np.bincount(keys.row_of_entry).max(initial=0)))


def _roundings(width: int, rows: int) -> int:
    size, count = _sizes(width)
    return 2 + count + -(-size // count) + -(-rows // size)


def _sizes(width: int) -> tuple[int, int]:
    """Entries of a range, or stored rows, and those of a product, of rows of some width."""
    each = 8 * max(1, width)
    return int(np.clip(4 * BLOCK_BYTES // each, 256, _RANGE)), int(np.clip(BLOCK_BYTES // each, 256, _PRODUCT))


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
    for other in view.holders(layer.weights):
        if other.name != layer.name:
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
        return cls(per_step, by_settings, np.array([used_steps(view, layer.log_name(name), at_step) for name in names]))

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


def used_steps(view: View, block: str, at_step: int | None) -> NDArray[np.bool_]:
    """bool[T]: whether an update of a block before `at_step` used the gradient of each step."""
    used = np.zeros(view.snapshot.steps, dtype=np.bool_)
    for update in updates(view.snapshot, block, at_step):
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
