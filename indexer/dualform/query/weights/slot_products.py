"""Sums of products of some slots' values and keys, each slot with a coefficient: the arithmetic of slot_sum.py.

Shapes: T slots, m selected, b of a block, R stored rows of which r belong to the selected slots, d_in, d_out.

Everything is float64. Float32 products over short blocks would cost less, but their last bits depend on the number of
threads, and so would the float32 that an output is rounded to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.workers import cores, divide
from dualform.query.sums.runs import added_in_order, begins
from dualform.query.view import Check
from dualform.query.weights.outer_products import outer_product
from dualform.store.layer import Layer
from dualform.store.rows import Keys, Rows

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
