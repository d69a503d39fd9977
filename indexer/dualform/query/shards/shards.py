"""The shards of a memory as a view asks them: each for its share, and what they answer merged.

Shapes: n queries, d of a layer, m entries that a mask leaves, G groups, g of them that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dualform.query.resolved import Resolved
from dualform.query.search.searcher import Ranked
from dualform.query.shards.absolute import AbsoluteShare
from dualform.query.shards.best import BestShare, merged
from dualform.query.shards.key_sums import KeyColumnsShare, KeySumsShare, in_order, joined
from dualform.query.shards.scores import ScoresShare
from dualform.query.shards.share import Share, shard_of
from dualform.query.shards.slot_sums import SlotSumShare
from dualform.query.sums import key_sums as whole
from dualform.query.sums.grouping import Grouping
from dualform.query.sums.key_sums import KeySummer, KeySums
from dualform.query.view import Check, View
from dualform.query.weights.slot_products import SlotSum
from dualform.query.where.mask import Selection, Source
from dualform.questions import TopK
from dualform.store.layer import Layer
from dualform.store.moment import Moment

_BYTES = 64 << 20
"""Of the keys or scores that one round of shares is about, however many slots there are."""


@dataclass(frozen=True, eq=False)
class ShardQuestion:
    """A share, and of which moment of the memory it is asked."""

    share: Share[Any]
    moment: Moment
    name: str = field(default_factory=lambda: uuid4().hex)
    """By which whoever asked may give it up."""


AskShards: TypeAlias = Callable[[ShardQuestion, Sequence[int], Check], Mapping[int, Any]]
"""Asks some shards, by number, and gives all their answers. Raises ShardsMissing where one does not answer, and what a
share raises."""


class Shards:
    def __init__(self, view: View, ask: AskShards) -> None:
        self._view, self._ask_shards = view, ask

    def best(self, resolved: Resolved[TopK], check: Check) -> list[Ranked]:
        """By query, group after group."""
        question, layer, selection = resolved.question, resolved.layer, resolved.selection
        share = BestShare(
            layer.name, _source(selection), question.by, resolved.queries, question.k, resolved.score.name
        )
        return merged(self._ask(share, layer, selection, check), question.k)

    def key_sums(self, grouping: Grouping) -> KeySums:
        layer, groups, check = grouping.layer, grouping.groups, grouping.check
        source, shards = _source(grouping.selection), self._shard_of(layer)
        summer = KeySummer(len(groups.counts), layer.d_in)
        count = -(-len(grouping.selection.stays) // whole.BLOCK)
        size = max(1, _BYTES // (4 * whole.BLOCK * max(1, layer.d_in)))
        for first in range(0, count, size):
            blocks = range(first, min(first + size, count))
            share = KeySumsShare(layer.name, source, groups.by, blocks)
            asked = self._shards_of(layer, grouping.selection, blocks.start * whole.BLOCK, blocks.stop * whole.BLOCK)
            parts = self._ask_some(share, asked, check)
            own = {block: [part[block] for part in parts.values() if block in part] for block in blocks}
            sums = {block: joined(found, layer.d_in) for block, found in own.items() if found}
            doubtful = {block: columns for block, (_, columns) in sums.items() if len(columns)}
            if doubtful:
                rows = self._ask_some(KeyColumnsShare(layer.name, source, groups.by, doubtful), asked, check)
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
            share = ScoresShare(layer.name, _source(selection), queries, first, last)
            asked = np.unique(shards[own]).tolist()
            for shard, scores in self._ask_some(share, asked, check).items():
                found[:, own][:, shards[own] == shard] = scores
        return found

    def absolute(
        self, grouping: Grouping, groups: NDArray[np.int64], queries: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """float64[n, g]: as Grouping.absolute."""
        layer, selection = grouping.layer, grouping.selection
        share = AbsoluteShare(layer.name, _source(selection), grouping.groups.by, queries, groups)
        found: NDArray[np.float64] = np.sum(self._ask(share, layer, selection, grouping.check), axis=0)
        return found

    def slot_sums(self, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Iterator[SlotSum]:
        """Of the shards that have a slot, in order."""
        share = SlotSumShare(layer.name, _source(selection), at_step, selection.stored)
        return iter(self._ask(share, layer, selection, check))

    def _ask(self, share: Share[Any], layer: Layer, selection: Selection, check: Check) -> list[Any]:
        """The answers of all shards that have an entry of a selection, in order."""
        return list(self._ask_some(share, self._shards_of(layer, selection), check).values())

    def _ask_some(self, share: Share[Any], shards: Sequence[int], check: Check) -> dict[int, Any]:
        found = self._ask_shards(ShardQuestion(share, self._view.snapshot.moment), shards, check)
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


def _source(selection: Selection) -> Source:
    assert selection.source is not None, "a selection that no text describes is summed by this process"
    return selection.source
