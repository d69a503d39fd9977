"""The training datapoints that queries attend to most. Shapes: n queries, G groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers.grade import Grade
from dualform.answers.scan import Scan

GroupKey: TypeAlias = tuple[Any, ...]
"""The values of a grouping's columns that one group has; None stands for NULL."""


@dataclass(frozen=True, eq=False)
class Hits:
    """The best slots of each query, best first: score descending, then slot ascending (paper section 5.2, figure 4).

    `slots[i]` is int64[hits] and `scores[i]` float32[hits] for query i. Where the question had `by`, `groups` holds one
    tuple of values per group, and `slots[i][g]`, `scores[i][g]` the best of group g. A group or mask with fewer than k
    slots gives fewer hits, never padding.
    """

    ids: NDArray[np.int64]
    """All slots, query after query, group after group."""
    flat_scores: NDArray[np.float32]
    """The score of each of `ids`."""
    counts: NDArray[np.int64]
    """int64[n, max(G, 1)]: how many of `ids` belong to each query and group."""
    groups: tuple[GroupKey, ...] | None = None
    by: tuple[str, ...] = ()
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space that `ids` count in."""
    grade: Grade | None = None
    """Of contributions, how exact the record of the layer is; None for scores of keys alone, which need no such."""

    @property
    def slots(self) -> Sequence[Any]:
        return self._split(self.ids)

    @property
    def scores(self) -> Sequence[Any]:
        return self._split(self.flat_scores)

    def _split(self, column: NDArray[Any]) -> list[Any]:
        parts = iter(np.split(column, np.cumsum(self.counts.ravel())[:-1]))
        rows = [[next(parts) for _ in range(self.counts.shape[1])] for _ in range(self.counts.shape[0])]
        return [row[0] for row in rows] if self.groups is None else rows

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return self.ids.nbytes + self.flat_scores.nbytes + self.counts.nbytes

    def part(self, start: int, stop: int) -> Hits:
        """The answer to the queries from start to stop. What answering took stays that of the whole."""
        first, last = (int(self.counts[:end].sum()) for end in (start, stop))
        own = slice(first, last)
        return replace(self, ids=self.ids[own], flat_scores=self.flat_scores[own], counts=self.counts[start:stop])

    def __len__(self) -> int:
        return int(self.counts.shape[0])
