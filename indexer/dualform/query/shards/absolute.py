"""Sums of absolute scores over groups that change signs: those of the shards, which are to 1e-6 each, added up.

Shapes: n queries, d of the layer, g groups that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.rescoring import score_rows
from dualform.query.shards.share import OneShard
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check
from dualform.query.where.mask import Source


@dataclass(frozen=True, eq=False)
class AbsoluteShare:
    layer: str
    source: Source
    by: tuple[str, ...]
    queries: NDArray[np.float32]
    """float32[n, d]."""
    groups: NDArray[np.int64]
    """int64[g]: numbers of groups."""

    def answer(self, shard: OneShard, check: Check) -> NDArray[np.float64]:
        """float64[n, g]."""
        layer = shard.layer(self.layer)
        groups = shard.grouped(layer, self.source, self.by, check)
        assert groups is not None, "a sum has columns to group by"
        grouping = Grouping(shard.part, layer, groups, shard.selected(layer, self.source, check), check)
        known = grouping.key_sums().sums[self.groups]
        return grouping.absolute(self.groups, known, score_rows(known, self.queries), self.queries)
