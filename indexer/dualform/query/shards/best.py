"""The k best entries of each query or group, of several shards.

Shapes: n queries, d of the layer, G groups (1 without columns).

Scores are canonical, so the k best of all are among the k best of each, and rank by score and then entry as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.score import kinds
from dualform.query.score.key_rows import key_rows
from dualform.query.search.cells import best_of_cells
from dualform.query.search.searcher import Ranked, Search
from dualform.query.search.top_k import best
from dualform.query.shards.share import OneShard
from dualform.query.view import Check
from dualform.query.where.mask import Source


class ShardsBest(NamedTuple):
    ranked: Sequence[Ranked]
    """By query, group after group; entries are numbered as in the whole memory."""
    counts: NDArray[np.int64]
    """int64[G]: how many of each group every query has."""


@dataclass(frozen=True, eq=False)
class BestShare:
    layer: str
    source: Source
    by: tuple[str, ...]
    queries: NDArray[np.float32]
    """float32[n, d]."""
    k: int
    score: str

    def answer(self, shard: OneShard, check: Check) -> ShardsBest:
        layer = shard.layer(self.layer)
        selection = shard.selected(layer, self.source, check)
        groups = shard.grouped(layer, self.source, self.by, check)
        rows = key_rows(shard.part, layer.name, selection, check)
        search = Search(shard.part, layer.name, rows, groups, self.k, check)
        found = best(search, kinds.named(self.score).searchers(shard.part.backend), self.queries)
        places = shard.rows.places(layer.name)
        counts = np.array([selection.count]) if groups is None else groups.counts
        return ShardsBest([(places[entries], scores) for entries, scores in found], np.minimum(counts, self.k))


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
