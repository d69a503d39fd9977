"""What finds the best entries of each query. There are two, and either works with any backend's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import KeyRows
from dualform.query.search.top_k import Ranked
from dualform.query.view import Check, View


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for: the k best entries of a layer, or of each group."""

    view: View
    layer: str
    rows: KeyRows
    groups: Groups | None
    k: int
    absolute: bool
    check: Check


class Searcher(Protocol):
    def find(self, search: Search, queries: NDArray[np.float32]) -> Sequence[Ranked | None]:
        """For each of float32[n, d] its best entries, group after group; None for a query that it cannot decide."""
        ...
