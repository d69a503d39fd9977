"""The attention that queries give to groups of training datapoints. Shapes: n queries, G groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers.hits import GroupKey
from dualform.answers.scan import Scan


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The summed attention weight of each group, for each query (paper section 5.2, figure 5). n queries, G groups."""

    groups: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]."""
    counts: NDArray[np.int64]
    """int64[G]: slots in each group."""
    by: tuple[str, ...] = ()
    """The columns that the question grouped by."""
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space whose slots were summed."""

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers that grow with the queries."""
        return self.sums.nbytes

    def part(self, start: int, stop: int) -> GroupSums:
        """The answer to the queries from start to stop. What answering took stays that of the whole."""
        return replace(self, sums=self.sums[start:stop])
