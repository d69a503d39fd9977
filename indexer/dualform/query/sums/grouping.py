"""The entries of a layer by group, and the two ways in which their scores are added up.

Shapes: n queries, G groups, d dimensions, R stored rows.

A sum of inner products is one inner product with the group's sum of keys, sum_t x_t . q = (sum_t x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added as in key_sums.py, and the product is that
of canonical.py. Where there are so many groups that their sums would be about as large as the keys, as token positions
may be, the scores of their slots are added instead, in slot order. Either way also weighs each key by a number of its
own. Absolute values add up in a third way where signs differ (absolute.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.canonical import score_every, score_rows
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.sums.absolute import Pairs, absolute_sums, every_absolute_sum, row_pairs
from dualform.query.sums.key_sums import KeySums, key_sums, stored_key_sums
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer

if TYPE_CHECKING:
    from dualform.query.shards.shards import Shards

BUDGET = 256 << 20
"""Bytes of key sums that are worth keeping."""
BATCH = 16
"""Queries whose scores of every slot are held at once."""


class KeyWeights(NamedTuple):
    """What the key of each entry is multiplied by before it is added up, or divided."""

    name: tuple[object, ...]
    """Tells these numbers from others of the same layer and mask."""
    of: Callable[[int], NDArray[np.float64]]
    """float64[m] for a query by its number, in the order of the groups' entries."""
    divided: bool = False
    shared: bool = True
    """Whether all queries have the same."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """The entries of one layer that a mask leaves, by group."""

    view: View
    layer: Layer
    groups: Groups
    selection: Selection
    check: Check

    @property
    def many(self) -> bool:
        """Whether there are too many groups for sums of keys."""
        return many(self.layer.d_in, len(self.groups.counts))

    @property
    def elsewhere(self) -> Shards | None:
        """Who answers for the shards, where that is not this process."""
        return self.view.shards if self.selection.source is not None else None

    def rows(self) -> KeyRows:
        """Raises Inexact where a key is not finite."""
        return key_rows(self.view, self.layer.name, self.selection, self.check)

    def sums(self, queries: NDArray[np.float32], weights: KeyWeights | None = None) -> NDArray[np.float64]:
        """float64[n, G]: the sums of each group's weighed inner products. Raises Inexact where a key is not finite."""
        if self.many or (weights is not None and not weights.shared):
            return self.by_slot(queries, weights)
        return score_rows(self.key_sums(weights).sums, queries)

    def key_sums(self, weights: KeyWeights | None = None) -> KeySums:
        """Raises Inexact where a key is not finite. Sums of multiplied keys are not kept on disk."""
        shards, memory = self.elsewhere if weights is None else None, self.view.snapshot

        def made() -> KeySums:
            if shards is not None:
                return shards.key_sums(self)
            numbers, divided = (None, False) if weights is None else (weights.of(0), weights.divided)
            if weights is None or divided:
                return stored_key_sums(memory, self.layer.name, self.groups, self.check, numbers)
            return key_sums(memory.keys(self.layer.name).passing(first=True), self.groups, self.check, numbers)

        name = () if weights is None else weights.name
        key = ("key sums", self.layer.name, self.selection.identity, self.groups.by, *name)
        sums = self.view.cache.get(key, made, self.check)
        if not sums.finite:
            self.rows()  # refuses, and names the slot
        return sums

    def by_slot(
        self, queries: NDArray[np.float32], weights: KeyWeights | None = None, absolute: bool = False
    ) -> NDArray[np.float64]:
        """float64[n, G]: the inner products of all slots, weighed, or their absolute values, added in slot order.

        Raises Inexact where a key is not finite.
        """
        groups, index = self.groups, None
        sums = np.empty((len(queries), len(groups.counts)))
        shards = self.elsewhere if weights is None else None
        if shards is None:
            rows = self.rows()
            own = rows.rows_of(groups.entries)
            if rows.keys.row_of_entry is not None:
                own, index = np.unique(own, return_inverse=True)
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            if shards is not None:
                products = shards.scores(self.layer, self.selection, groups.entries, batch, self.check)
            else:
                products = score_every(rows.keys, own, batch, self.check)
            if absolute:
                np.abs(products, out=products)
            for query, scores in enumerate(products, start):
                self.check()
                terms = scores if index is None else scores[index]
                if weights is not None:
                    terms = (np.divide if weights.divided else np.multiply)(terms, weights.of(query))
                sums[query] = np.bincount(groups.numbers, terms, minlength=len(groups.counts))
            del products, scores, terms  # as large as all else, and not to be held beside the next batch's
        return sums

    def absolute(self, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sums of absolute inner products, to 1e-6 relative. Raises Inexact where a key is not
        finite.

        Where neither a group's keys nor the query change sign, as after a relu, no product changes sign either, and
        the sum of absolute values is the absolute value of the sum. Other groups need every product.
        """
        if self.many:
            if self.elsewhere is not None:
                return self.by_slot(queries, absolute=True)
            return every_absolute_sum(self.rows().keys, self._pairs(), len(self.groups.counts), queries, self.check)
        known = self.key_sums()
        sums, additive = score_rows(known.sums, queries), one_sign(known, queries)
        if not additive.all():
            some, mixed = np.flatnonzero(~additive.all(axis=1)), np.flatnonzero(~additive.all(axis=0))
            cells = np.ix_(some, mixed)
            sums[cells] = self.absolute_of(mixed, known.sums[mixed], sums[cells], queries[some])
        return np.abs(sums, out=sums)

    def absolute_of(
        self,
        chosen: NDArray[np.int64],
        sums: NDArray[np.float64],
        signed: NDArray[np.float64],
        queries: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """float64[n, g]: sums of absolute inner products of some groups, int64[g], from a scan over their keys.

        Known are their float64[g, d] key sums and float64[n, g] signed sums. Raises Inexact where a key is not finite.
        """
        if self.elsewhere is not None:
            return self.elsewhere.absolute(self, chosen, queries)
        pairs, counts = self._pairs().of(chosen, len(self.groups.counts)), self.groups.counts[chosen].astype(np.float64)
        return absolute_sums(self.rows(), pairs, counts, sums, signed, queries, self.check)

    def _pairs(self) -> Pairs:
        rows = self.rows()
        key = ("pairs", self.layer.name, rows.identity, self.groups.by)
        return self.view.cache.get(key, lambda: row_pairs(rows, self.groups), self.check)


def many(width: int, groups: int) -> bool:
    """Whether key sums take more room than they are worth. Nothing else may matter, because this decides bits."""
    return 8 * width * groups > BUDGET


def one_sign(sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool[n, G]: where no inner product of a group's keys with a query has another sign than the others."""
    of_query = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
    found: NDArray[np.bool_] = of_query[:, None] & sums.one_sign
    return found
