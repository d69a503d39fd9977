"""The best slots by their contributions along a direction. Shapes: n queries, m entries that speak, d of a key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform.query.directed.directed_values import DirectedValues
from dualform.query.groups import group_entries
from dualform.query.score.kinds.signed import Signed
from dualform.query.search.best_of_groups import best_of_groups
from dualform.query.search.scan import ProductScorer
from dualform.query.search.searcher import Ranked, Search
from dualform.query.view import Check


def directed_best(search: Search, values: DirectedValues, queries: NDArray[np.float32], check: Check) -> list[Ranked]:
    """By query, the best entries of float32[n, d], group after group. `search` is among the entries of `values`."""
    if search.groups is None:
        search = replace(search, groups=group_entries(search.view, values.layer, values.selection, (), check))
    score = Signed()
    found = best_of_groups(
        search,
        queries,
        lambda own, some: ProductScorer.of(own, some, score),
        lambda query: values.of(query, check),
    )
    search.view.tally.add(queries=len(queries))
    return found
