"""Sums of keys over several shards, with the bits of one machine's.

Shapes: d dimensions of a layer, g groups that a shard has in a block, b entries that it has there, c columns.

One machine adds the keys of a block slot after slot, and the slots of shards alternate. A sum in which nothing is
rounded has the same bits in any order, and so has a group that one shard has alone. With its part of a sum each shard
says between which powers of two the numbers lie; where these leave room for a rounding, the keys themselves are asked
for, column by column, and added in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.shards.share import OneShard
from dualform.query.sums import key_sums as whole
from dualform.query.sums.key_sums import BlockSums, SortedRows, added, sorted_rows
from dualform.query.sums.runs import begins
from dualform.query.view import Check
from dualform.query.where.mask import Source

_BITS = 53
"""Of a float64's significand."""
_KEY_BITS = 24
"""Of a key's: a float32 of the binary exponent e is a multiple of 2^(e - 24)."""
_NONE = np.int16(1 << 14)
"""The lowest exponent of no number at all; no float has it."""


@dataclass(frozen=True, eq=False)
class BlockPart:
    """What one shard has of a block."""

    added: BlockSums
    counts: NDArray[np.int64]
    """int64[g]: entries."""
    lowest: NDArray[np.int16]
    """int16[g, d]: the least binary exponent of a number that is not 0, as of numpy.frexp; _NONE where all are 0."""
    highest: NDArray[np.int16]
    """int16[g, d]: the greatest."""


@dataclass(frozen=True, eq=False)
class KeySumsShare:
    layer: str
    source: Source
    by: tuple[str, ...]
    blocks: range
    """Numbers of blocks of the whole memory's entries."""

    def answer(self, shard: OneShard, check: Check) -> dict[int, BlockPart]:
        """By block; those of which the shard has no entry are left out."""
        return {block: _part(rows) for block, rows in _rows_of(shard, self, self.blocks, check)}


@dataclass(frozen=True, eq=False)
class KeyColumnsShare:
    layer: str
    source: Source
    by: tuple[str, ...]
    columns: Mapping[int, NDArray[np.int64]]
    """By block, int64[c]."""

    def answer(self, shard: OneShard, check: Check) -> dict[int, NDArray[np.float32]]:
        """By block, float32[b, c]: the keys of its entries, by group and then in order."""
        rows = _rows_of(shard, self, list(self.columns), check)
        return {block: own.keys[:, self.columns[block]] for block, own in rows}


def _rows_of(
    shard: OneShard, share: KeySumsShare | KeyColumnsShare, blocks: Sequence[int], check: Check
) -> list[tuple[int, SortedRows]]:
    layer = shard.layer(share.layer)
    groups = shard.grouped(layer, share.source, share.by, check)
    assert groups is not None, "a sum has columns to group by"
    keys, places = shard.rows.keys(layer.name), shard.rows.places(layer.name)[groups.entries]
    found = []
    for block in blocks:
        check()
        own = slice(*np.searchsorted(places, [block * whole.BLOCK, (block + 1) * whole.BLOCK]).tolist())
        if own.start < own.stop:
            found.append((block, sorted_rows(keys, groups.entries[own], groups.numbers[own])))
    return found


def _part(rows: SortedRows) -> BlockPart:
    exponents = np.frexp(rows.keys)[1].astype(np.int16)
    zero = rows.keys == 0
    highest = np.maximum.reduceat(np.where(zero, -_NONE, exponents), rows.runs)
    lowest = np.minimum.reduceat(np.where(zero, _NONE, exponents), rows.runs)
    counts = np.diff(rows.runs, append=len(rows.keys))
    return BlockPart(added(rows), counts, lowest, highest)


def joined(parts: Sequence[BlockPart], width: int) -> tuple[BlockSums, NDArray[np.int64]]:
    """The sums of a block, and int64[c]: columns of which they may not have the bits of a sum in order."""
    groups = np.unique(np.concatenate([part.added.groups for part in parts]))
    shape = (len(groups), width)
    sums = np.full(shape, -0.0)  # what adds nothing to anything, to -0.0 neither
    counts, shards = np.zeros((2, len(groups)), np.int64)
    least, most = np.zeros((2, len(groups)), np.float32)
    lowest, highest = np.full(shape, _NONE), np.full(shape, -_NONE)
    for part in parts:
        own = np.searchsorted(groups, part.added.groups)
        sums[own] += part.added.sums
        counts[own] += part.counts
        shards[own] += 1
        least[own], most[own] = np.minimum(least[own], part.added.least), np.maximum(most[own], part.added.most)
        lowest[own], highest[own] = np.minimum(lowest[own], part.lowest), np.maximum(highest[own], part.highest)
    # All numbers are multiples of 2^(lowest - 24), and no sum of some of them reaches counts 2^highest.
    spread = np.where(lowest == _NONE, 0, highest.astype(np.int64) - lowest)
    exact = spread + _KEY_BITS + np.ceil(np.log2(counts))[:, None] <= _BITS
    doubtful = np.flatnonzero(~(exact | (shards == 1)[:, None]).all(axis=0))
    return BlockSums(groups, sums, least, most), doubtful


def in_order(
    block: int, sums: BlockSums, columns: NDArray[np.int64], groups: Groups, shard_of: NDArray[np.int64],
    parts: Mapping[int, NDArray[np.float32]],
) -> None:  # fmt: skip
    """Put the sums of some columns of a block, added slot after slot, in their place.

    `shard_of` is int64[H]: the shard of each entry; `parts`, float32[b, c], are the shards' keys by their numbers.
    """
    own = slice(*np.searchsorted(groups.entries, [block * whole.BLOCK, (block + 1) * whole.BLOCK]).tolist())
    entries, numbers = groups.entries[own], groups.numbers[own]
    order = np.argsort(numbers, kind="stable")
    keys, shards = np.empty((len(entries), len(columns)), np.float32), shard_of[entries[order]]
    for shard, rows in parts.items():
        keys[shards == shard] = rows
    runs = begins(numbers[order])
    sums.sums[:, columns] = added(SortedRows(entries[order], keys, runs, sums.groups)).sums
