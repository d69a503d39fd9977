"""The k best entries of each query in each group by a scan, exact as in best_entries.

Shapes: n queries, m entries that the mask leaves, G groups, c candidates.

The scores of all slots are held for one query at a time. A group's floor is the k-th best lower bound among its slots;
slots that can reach it are scored again canonically. Where slots have factors of their own, as contributions have, a
slot's score is that of its key times its factor, and slots that share a key differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import KeyRows
from dualform.query.search.scan import Scorer, ScorerOf, blocks
from dualform.query.search.searcher import Ranked, Search
from dualform.query.view import Check

FactorsOf: TypeAlias = Callable[[int], NDArray[np.float64]]
"""float64[m]: what a query multiplies the score of each entry by, in the order of Groups.entries."""
_MATRIX_BYTES = 128 << 20
_ROUNDING, _TINY = 2.0**-50, 2.0**-1020
"""Above those of a few float64 operations: relative, and of products below the smallest normal number."""
_LOOPED = 512
"""Up to so many groups are partitioned one by one; beyond it, sorting all slots is faster."""


@dataclass(frozen=True, eq=False)
class Members:
    """The entries that stay, group after group."""

    order: NDArray[np.int64]
    """int64[m]: positions in Groups.entries, by group, then ascending."""
    starts: NDArray[np.int64]
    """int64[G + 1]."""
    rows: NDArray[np.int64]
    """int64[m]: the stored row of each position's key."""


def best_of_groups(
    search: Search, queries: NDArray[np.float32], scorer: ScorerOf, factors_of: FactorsOf | None = None
) -> list[Ranked]:
    """For each query, the k best slots of group 0, then of group 1, and so on; a smaller group gives all it has."""
    rows, groups, k, check = search.rows, search.groups, search.k, search.check
    assert groups is not None, "a search without groups is best_entries'"
    members = Members(
        np.argsort(groups.numbers, kind="stable"),
        np.concatenate([[0], np.cumsum(groups.counts)]),
        rows.rows_of(groups.entries),
    )
    size = max(1, _MATRIX_BYTES // (8 * max(1, rows.keys.rows)))
    found = []
    for start in range(0, len(queries), size):
        batch = scorer(search, queries[start : start + size])
        scores = _all_scores(batch, rows, check)
        for i in range(len(batch.queries)):
            check()
            own, errors = scores[i][members.rows], batch.errors_of(members.rows, i)
            factors = None if factors_of is None else factors_of(start + i)
            if factors is not None:
                own *= factors
                # Of the bound itself, of both products of the factor, and of what is too small for a normal number.
                errors = errors * np.abs(factors) * (1 + _ROUNDING) + _ROUNDING * np.abs(own) + _TINY
            near = _candidates(own, errors, groups, members, k)
            check()
            found.append(_ranked(batch, i, groups, members, near, k, factors))
    return found


def _all_scores(batch: Scorer, rows: KeyRows, check: Check) -> NDArray[np.float64]:
    """float64[n, R]: the scan's scores of every row that stays."""
    scores = np.zeros((len(batch.queries), rows.keys.rows))
    for block in blocks(rows):
        check()
        scores[:, block.rows] = batch.scores(block)
    return scores


def _candidates(
    scores: NDArray[np.float64], errors: NDArray[np.float64], groups: Groups, members: Members, k: int
) -> NDArray[np.int64]:
    """int64[c]: positions of the slots that can be among the k best of their group."""
    floors = np.full(len(groups.counts), -np.inf)
    low = scores - errors
    large = np.flatnonzero(groups.counts > k)
    if len(large) <= _LOOPED:
        ordered = low[members.order]
        for g in large:
            own = ordered[members.starts[g] : members.starts[g + 1]]
            floors[g] = np.partition(own, len(own) - k)[len(own) - k]
    else:
        best_first = np.lexsort((-low, groups.numbers))
        floors[large] = low[best_first[members.starts[large] + k - 1]]
    return np.flatnonzero(scores + errors >= floors[groups.numbers])


def _ranked(
    batch: Scorer,
    query: int,
    groups: Groups,
    members: Members,
    near: NDArray[np.int64],
    k: int,
    factors: NDArray[np.float64] | None,
) -> Ranked:
    distinct, index = np.unique(members.rows[near], return_inverse=True)
    scores = batch.canonical(distinct, query)[index]
    if factors is not None:
        scores = scores * factors[near] + 0.0  # -0.0 becomes 0.0
    entries, numbers = groups.entries[near], groups.numbers[near]
    order = np.lexsort((entries, -scores, numbers))
    begins = np.searchsorted(numbers[order], np.arange(len(groups.counts)))
    place = np.arange(len(order)) - begins[numbers[order]]
    kept = order[place < k]
    return entries[kept], scores[kept]
