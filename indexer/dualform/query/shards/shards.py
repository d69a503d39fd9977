"""Questions to the shards of a memory: each shard's share, and how shares are merged.

A share is a function `(shard, check, layer, source, …)` of this module: it travels between processes by its name, with
the name of a layer, the source of a selection, and its further arguments.

- The k best entries of each query or group: scores are canonical, so the k best of all are among the k best of each.
- Sums of keys, with the bits of one machine's. One machine adds the keys of a block slot after slot, and the slots of
  shards alternate. A sum in which nothing is rounded has the same bits in any order, and so has a group that one shard
  has alone. With its part of a sum each shard says between which powers of two the numbers lie; where these leave room
  for a rounding, the keys themselves are asked for, column by column, and added in order.
- Scores of single slots, for sums over more groups than are worth a sum of keys each.
- Sums of absolute scores over groups that change signs: those of the shards, which are to 1e-6 each, added up.
- What the slots of each shard brought to a layer's weights (dualform.query.weights.slot_products).

Shapes: n queries, d of a layer, H entries of it in the whole memory, m of them that a mask leaves in the shard or in a
range, G groups (1 without columns), g of them that are asked for or that a shard has in a block, b entries that it has
there, c columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups, Members, group_entries
from dualform.query.resolved import Resolved
from dualform.query.score import algebra
from dualform.query.score.canonical import score_every, score_rows
from dualform.query.score.key_rows import key_rows
from dualform.query.search.scan import Ranked, Search, best_of_cells
from dualform.query.search.top_k import best
from dualform.query.sums import key_sums as whole
from dualform.query.sums.grouping import Grouping
from dualform.query.sums.key_sums import BlockSums, KeySummer, KeySums, SortedRows, added, begins, sorted_rows
from dualform.query.view import Check, View
from dualform.query.weights.slot_products import SlotSum, slot_coefficients, sum_of_shard
from dualform.query.where import mask
from dualform.query.where.mask import Selection, Source
from dualform.questions import TopK
from dualform.store.layer import Layer
from dualform.store.reading.snapshot import Moment, Part, shard_of_entries
from dualform.store.rows import Integers


@dataclass(frozen=True, eq=False)
class OneShard:
    """The whole memory, of which no rows are read, and the rows of one shard. Both see one moment."""

    whole: View
    part: View
    rows: Part
    """The snapshot of `part`."""

    def layer(self, name: str) -> Layer:
        return self.whole.snapshot.layer(name)

    def selected(self, layer: Layer, source: Source, check: Check) -> Selection:
        """The shard's entries that a selection of the whole leaves, numbered within the shard."""
        whole = selection(self.whole, layer, source, check)
        return self.part.cache.get(
            ("selection", layer.name, whole.identity),
            lambda: Selection(whole.identity, whole.stays[self.rows.places(layer.name)]),
        )

    def grouped(self, layer: Layer, source: Source, by: tuple[str, ...], check: Check) -> Groups | None:
        """The same by group. Groups are those of the whole, and may have no entry here; None for no columns."""
        if not by:
            return None
        chosen = selection(self.whole, layer, source, check)
        whole = group_entries(self.whole, layer, chosen, by, check)

        def made() -> Groups:
            entries, there = self.rows.own(layer.name, whole.entries)
            numbers = whole.numbers[there]
            counts = np.bincount(numbers, minlength=len(whole.keys)).astype(np.int64)
            return Groups.of(by, whole.keys, Members(entries, numbers), counts)

        return self.part.cache.get(("groups", layer.name, chosen.identity, by), made)


def selection(view: View, layer: Layer, source: Source, check: Check) -> Selection:
    """What a source says, of the whole memory."""
    found = mask.selection(view, layer, source.where, check)
    return without(view, layer, found, source.without) if source.without else found


def without(view: View, layer: Layer, whole: Selection, shards: tuple[int, ...]) -> Selection:
    """A selection less the entries of some shards."""
    assert whole.source is not None, "only what was asked for is asked for again"
    source = Source(whole.source.where, shards)
    identity = f"{whole.identity} without shards {', '.join(map(str, shards))}"
    return view.cache.get(
        ("selection", layer.name, identity),
        lambda: Selection(identity, whole.stays & ~np.isin(shard_of(view, layer), shards), source),
    )


def shard_of(view: View, layer: Layer) -> Integers:
    """int64[H]: the shard of each entry."""
    name = layer.stored.name
    return view.cache.get(("shard of", name), lambda: shard_of_entries(view.snapshot, name))


def absolute_of(
    shard: OneShard, check: Check, layer: str, source: Source, by: tuple[str, ...], queries: NDArray[np.float32],
    numbers: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """float64[n, g]: sums of absolute scores. `queries`: float32[n, d]; `numbers`: int64[g], of groups."""
    own = shard.layer(layer)
    groups = shard.grouped(own, source, by, check)
    assert groups is not None, "a sum has columns to group by"
    grouping = Grouping(shard.part, own, groups, shard.selected(own, source, check), check)
    known = grouping.key_sums().sums[numbers]
    return grouping.absolute_of(numbers, known, score_rows(known, queries), queries)


class ShardsBest(NamedTuple):
    ranked: Sequence[Ranked]
    """By query, group after group; entries are numbered as in the whole memory."""
    counts: NDArray[np.int64]
    """int64[G]: how many of each group every query has."""


def best_of(
    shard: OneShard, check: Check, layer: str, source: Source, by: tuple[str, ...], queries: NDArray[np.float32],
    k: int, score: str,
) -> ShardsBest:  # fmt: skip
    """`queries`: float32[n, d]."""
    own = shard.layer(layer)
    selection = shard.selected(own, source, check)
    groups = shard.grouped(own, source, by, check)
    rows = key_rows(shard.part, layer, selection, check)
    found = best(Search.of(algebra.named(score), shard.part, layer, rows, groups, k, queries, check))
    places = shard.rows.places(layer)
    counts = np.array([selection.count]) if groups is None else groups.counts
    return ShardsBest([(places[entries], scores) for entries, scores in found], np.minimum(counts, k))


def merged(shards: Sequence[ShardsBest], k: int) -> list[Ranked]:
    """By query, group after group."""
    groups, queries = len(shards[0].counts), len(shards[0].ranked)
    entries = np.concatenate([own for shard in shards for own, _ in shard.ranked])
    scores = np.concatenate([own for shard in shards for _, own in shard.ranked])
    cells = np.concatenate(
        [query * groups + np.repeat(np.arange(groups), shard.counts) for shard in shards for query in range(queries)]
    )
    kept = best_of_cells(cells, scores, entries, k)
    cuts = np.searchsorted(cells[kept], np.arange(1, queries) * groups)
    return list(zip(np.split(entries[kept], cuts), np.split(scores[kept], cuts), strict=True))


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


def key_sums_of(
    shard: OneShard, check: Check, layer: str, source: Source, by: tuple[str, ...], blocks: range
) -> dict[int, BlockPart]:
    """By block, of those of the whole memory's entries with these numbers; those of which the shard has no entry are
    left out.
    """
    return {block: _part(rows) for block, rows in _rows_of(shard, check, layer, source, by, blocks)}


def key_columns_of(
    shard: OneShard, check: Check, layer: str, source: Source, by: tuple[str, ...],
    columns: Mapping[int, NDArray[np.int64]],
) -> dict[int, NDArray[np.float32]]:  # fmt: skip
    """By block, float32[b, c]: the keys of its entries, by group and then in order. `columns`: by block, int64[c]."""
    rows = _rows_of(shard, check, layer, source, by, list(columns))
    return {block: own.keys[:, columns[block]] for block, own in rows}


def _rows_of(
    shard: OneShard, check: Check, layer: str, source: Source, by: tuple[str, ...], blocks: Sequence[int]
) -> list[tuple[int, SortedRows]]:
    groups = shard.grouped(shard.layer(layer), source, by, check)
    assert groups is not None, "a sum has columns to group by"
    keys, places = shard.rows.keys(layer), shard.rows.places(layer)[groups.entries]
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


def scores_of(
    shard: OneShard, check: Check, layer: str, source: Source, queries: NDArray[np.float32], first: int, last: int
) -> NDArray[np.float64]:
    """float64[n, m]: canonical inner products of float32[n, d] with the shard's entries of a range of the whole
    memory's.
    """
    selection = shard.selected(shard.layer(layer), source, check)
    rows = key_rows(shard.part, layer, selection, check)
    places = shard.rows.places(layer)[selection.entries]
    own = selection.entries[slice(*np.searchsorted(places, [first, last]).tolist())]
    stored, index = np.unique(rows.rows_of(own), return_inverse=True)
    return score_every(rows.keys, stored, queries, check)[:, index]


def slot_sum_of(
    shard: OneShard, check: Check, layer: str, source: Source, at_step: int | None, stored: bool
) -> SlotSum:
    """`stored`: as of the selection."""
    own = shard.layer(layer)
    chosen = selection(shard.whole, own, source, check)

    def made() -> SlotSum:
        coefficients = slot_coefficients(shard.whole, own, chosen, at_step)
        return sum_of_shard(shard.rows, own, coefficients, check, stored)

    return shard.part.cache.get(("slot sum", layer, chosen.identity, at_step, stored), made, check)


_BYTES = 64 << 20
"""Of the keys or scores that one round of shares is about, however many slots there are."""


@dataclass(frozen=True, eq=False)
class ShardQuestion:
    """A share, and of which moment of the memory it is asked."""

    share: Callable[..., Any]
    """A function of this module."""
    arguments: tuple[Any, ...]
    """Those after the shard and its check."""
    moment: Moment
    name: str = field(default_factory=lambda: uuid4().hex)
    """By which whoever asked may give it up."""


AskShards: TypeAlias = Callable[[ShardQuestion, Sequence[int], Check], Mapping[int, Any]]
"""Asks some shards, by number, and gives all their answers. Raises ShardsMissing where one does not answer, and what
the question raises of a shard's own rows."""


class Shards:
    def __init__(self, view: View, ask: AskShards) -> None:
        self._view, self._ask_shards = view, ask

    def best(self, resolved: Resolved[TopK], check: Check) -> list[Ranked]:
        """By query, group after group."""
        question, layer, selection = resolved.question, resolved.layer, resolved.selection
        more = question.by, resolved.queries, question.k, resolved.score.name
        return merged(self._ask(best_of, layer, selection, check, *more), question.k)

    def key_sums(self, grouping: Grouping) -> KeySums:
        layer, groups, check = grouping.layer, grouping.groups, grouping.check
        selection, shards = grouping.selection, self._shard_of(layer)
        summer = KeySummer(len(groups.counts), layer.d_in)
        count = -(-len(selection.stays) // whole.BLOCK)
        size = max(1, _BYTES // (4 * whole.BLOCK * max(1, layer.d_in)))
        for first in range(0, count, size):
            blocks = range(first, min(first + size, count))
            asked = self._shards_of(layer, selection, blocks.start * whole.BLOCK, blocks.stop * whole.BLOCK)
            parts = self._ask_some(key_sums_of, asked, layer, selection, check, groups.by, blocks)
            own = {block: [part[block] for part in parts.values() if block in part] for block in blocks}
            sums = {block: joined(found, layer.d_in) for block, found in own.items() if found}
            doubtful = {block: columns for block, (_, columns) in sums.items() if len(columns)}
            if doubtful:
                rows = self._ask_some(key_columns_of, asked, layer, selection, check, groups.by, doubtful)
                for block, columns in doubtful.items():
                    keys = {shard: found[block] for shard, found in rows.items() if block in found}
                    in_order(block, sums[block][0], columns, groups, shards, keys)
            for found, _ in sums.values():
                summer.add_block(found)
        return summer.sums()

    def scores(
        self,
        layer: Layer,
        selection: Selection,
        entries: NDArray[np.int64],
        queries: NDArray[np.float32],
        check: Check,
    ) -> NDArray[np.float64]:
        """float64[n, m]: the inner products of the entries int64[m] of a selection, in their order, which ascends."""
        found, shards = np.empty((len(queries), len(entries))), self._shard_of(layer)[entries]
        size = max(1, _BYTES // (8 * len(queries)))
        for start in range(0, len(entries), size):
            own = slice(start, start + size)
            first, last = int(entries[own][0]), int(entries[own][-1]) + 1
            asked = np.unique(shards[own]).tolist()
            more = queries, first, last
            for shard, scores in self._ask_some(scores_of, asked, layer, selection, check, *more).items():
                found[:, own][:, shards[own] == shard] = scores
        return found

    def absolute(
        self, grouping: Grouping, groups: NDArray[np.int64], queries: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """float64[n, g]: as Grouping.absolute_of."""
        layer, selection = grouping.layer, grouping.selection
        more = grouping.groups.by, queries, groups
        found: NDArray[np.float64] = np.sum(self._ask(absolute_of, layer, selection, grouping.check, *more), axis=0)
        return found

    def slot_sums(self, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Iterator[SlotSum]:
        """Of the shards that have a slot, in order."""
        return iter(self._ask(slot_sum_of, layer, selection, check, at_step, selection.stored))

    def _ask(
        self, share: Callable[..., Any], layer: Layer, selection: Selection, check: Check, *more: Any
    ) -> list[Any]:
        """The answers of all shards that have an entry of a selection, in order."""
        asked = self._shards_of(layer, selection)
        return list(self._ask_some(share, asked, layer, selection, check, *more).values())

    def _ask_some(
        self,
        share: Callable[..., Any],
        shards: Sequence[int],
        layer: Layer,
        selection: Selection,
        check: Check,
        *more: Any,
    ) -> dict[int, Any]:
        """By shard, in order. `more`: the share's arguments after its layer and source."""
        assert selection.source is not None, "a selection that no text describes is summed by this process"
        arguments = layer.name, selection.source, *more
        found = self._ask_shards(ShardQuestion(share, arguments, self._view.snapshot.moment), shards, check)
        return {shard: found[shard] for shard in shards}

    def _shards_of(self, layer: Layer, selection: Selection, first: int = 0, last: int | None = None) -> list[int]:
        """Those that have an entry of a selection, or of a range of it, ascending."""
        stays = selection.stays[first:last]
        found: list[int] = np.unique(self._shard_of(layer)[first:last][stays]).tolist()
        return found

    def _shard_of(self, layer: Layer) -> NDArray[np.int64]:
        """int64[H]: the shard of each entry. Raises NotFound where no shard has keys of the layer."""
        if not layer.keys:
            self._view.snapshot.keys(layer.name)  # says so, and what to do
        return shard_of(self._view, layer)
