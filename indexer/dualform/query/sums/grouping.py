"""The entries of a layer by group, and the two ways in which their scores are added up.

Shapes: n queries, G groups, d dimensions, R stored rows.

A sum of inner products is one inner product with the group's sum of keys, sum_t x_t . q = (sum_t x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added as in key_sums.py, and the product is that
of canonical.py. Where there are so many groups that their sums would be about as large as the keys, as token positions
may be, the scores of their slots are added instead, in slot order. Each score chooses between the two, or brings a
third (query/score/kinds/). Either way also divides each key by a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.score.rescoring import score_every
from dualform.query.sums.absolute_sum import AbsoluteScan
from dualform.query.sums.key_sums import KeySums, key_sums
from dualform.query.sums.stored_key_sums import stored_key_sums
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer

if TYPE_CHECKING:
    from dualform.query.shards.shards import Shards

BUDGET = 256 << 20
"""Bytes of key sums that are worth keeping."""
BATCH = 16
"""Queries whose scores of every slot are held at once."""


class RowDivisors(NamedTuple):
    """What the key of each stored row is divided by before it is added up."""

    name: str
    """Tells these numbers from others of the same layer."""
    numbers: NDArray[np.float64]
    """float64[R]."""


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

    def key_sums(self, divisors: RowDivisors | None = None) -> KeySums:
        """Raises Inexact where a key is not finite."""
        name, numbers = divisors or ("", None)
        key = ("key sums", self.layer.name, self.selection.identity, self.groups.by, name)
        shards = self.elsewhere

        def made() -> KeySums:
            if shards is not None and divisors is None:
                return shards.key_sums(self)
            return stored_key_sums(self.view.snapshot, self.layer.name, self.groups, self.check, numbers)

        sums = self.view.cache.get(key, made, self.check)
        if not sums.finite:
            self.rows()  # refuses, and names the slot
        return sums

    def scaled_key_sums(self, name: tuple[object, ...], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[G, d]: as `key_sums`, each key times the factor float64[m] of its entry, in the order of the groups'
        entries. `name` tells these factors from others of the layer under the same mask. Not kept on disk.

        Raises Inexact where a key is not finite.
        """

        def made() -> KeySums:
            keys = self.view.snapshot.keys(self.layer.name)
            return key_sums(keys.passing(first=True), self.groups, self.check, factors=factors)

        key = ("key sums", self.layer.name, self.selection.identity, self.groups.by, *name)
        sums = self.view.cache.get(key, made, self.check)
        if not sums.finite:
            self.rows()  # refuses, and names the slot
        return sums.sums

    def by_slot(
        self,
        queries: NDArray[np.float32],
        of: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
        divisors: RowDivisors | None = None,
        factors_of: Callable[[int], NDArray[np.float64]] | None = None,
    ) -> NDArray[np.float64]:
        """float64[n, G]: the inner products of all slots, or what `of` makes of them, added in slot order.

        `of` may write over them. `factors_of` gives float64[m] for a query: what the product of each entry is
        multiplied by before it is added. Raises Inexact where a key is not finite.
        """
        groups, index = self.groups, None
        sums = np.empty((len(queries), len(groups.counts)))
        shards = self.elsewhere if divisors is None else None
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
            if divisors is not None:
                products /= divisors.numbers[own]
            for i, scores in enumerate(products if of is None else of(products), start):
                self.check()
                terms = scores if index is None else scores[index]
                if factors_of is not None:
                    terms = terms * factors_of(i)
                sums[i] = np.bincount(groups.numbers, terms, minlength=len(groups.counts))
            del products, scores, terms  # as large as all else, and not to be held beside the next batch's
        return sums

    def absolute(
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
        return self._absolute_scan().sums(chosen, sums, signed, queries)

    def every_absolute(self, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: sums of absolute inner products where groups are `many`. Raises as `absolute`."""
        if self.elsewhere is not None:
            return self.by_slot(queries, lambda products: np.abs(products, out=products))
        return self._absolute_scan().every(queries)

    def _absolute_scan(self) -> AbsoluteScan:
        return AbsoluteScan(self.view, self.layer.name, self.rows(), self.groups, self.check)


def many(width: int, groups: int) -> bool:
    """Whether key sums take more room than they are worth. Nothing else may matter, because this decides bits."""
    return 8 * width * groups > BUDGET
