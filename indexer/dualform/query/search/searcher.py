"""What finds the best entries of each query: the screen, where the backend has codes; the scan, with any backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import KeyRows
from dualform.query.view import Check, View

Ranked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Entries of the layer and their scores, best first."""


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for: the k best entries of a layer, or of each group."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups | None
    k: int
    check: Check


class Searcher(Protocol):
    def find(self, search: Search, queries: NDArray[np.float32]) -> Sequence[Ranked | None]:
        """The best entries for each of float32[n, d], group after group; None for a query that it cannot decide."""
        ...
