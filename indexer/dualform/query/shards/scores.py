"""Scores of single slots, for sums over more groups than are worth a sum of keys each.

Shapes: n queries, d of the layer, m entries of a range that a mask leaves, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.key_rows import key_rows
from dualform.query.score.rescoring import score_every
from dualform.query.shards.share import OneShard
from dualform.query.view import Check
from dualform.query.where.mask import Source


@dataclass(frozen=True, eq=False)
class ScoresShare:
    layer: str
    source: Source
    queries: NDArray[np.float32]
    """float32[n, d]."""
    first: int
    last: int
    """A range of entries of the whole memory."""

    def answer(self, shard: OneShard, check: Check) -> NDArray[np.float64]:
        """float64[n, m]: canonical inner products with the shard's entries of the range."""
        layer = shard.layer(self.layer)
        selection = shard.selected(layer, self.source, check)
        rows = key_rows(shard.part, layer.name, selection, check)
        places = shard.rows.places(layer.name)[selection.entries]
        own = selection.entries[slice(*np.searchsorted(places, [self.first, self.last]).tolist())]
        stored, index = np.unique(rows.rows_of(own), return_inverse=True)
        return score_every(rows.keys, stored, self.queries, check)[:, index]
