"""The scores that questions name: dot, abs and cosine. A new score is a class here and a line in the table below.

Shapes: n queries, m entries that a mask leaves, R stored rows, c pairs, G groups.

    score  =  product x weight of the row or entry x weight of the query,  or its absolute value

The product is the inner product of key and query. Weights are data (`Weights`): a cosine weighs by lengths, a
contribution by the worth of each slot's value along a direction (query/directed.py). One screen, one rerank and one
buffer find the best of them all (query/search/), and one pass adds them up (query/sums/grouping.py).

    dot     x . q
    abs     |x . q|, as the paper takes it where inputs can be negative
    cosine  x . q / (|x| |q|), 0 where either is of no length: what key and query have in common, however long they are

A cosine is made in float64 of canonical lengths and products (canonical.py): a key or a query that is taken 2^n times
as long gives the same bits. Keys of one direction have one cosine, of which float64 may round the last bits apart; so
cosines rank by the float32 that is reported, and then by slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query.score.canonical import as_float32, cosines, divisors, norms
from dualform.query.score.key_rows import KeyRows
from dualform.query.search.codes import CodesCache, RowFactors
from dualform.query.sums.grouping import Grouping, KeyWeights
from dualform.query.view import Check, View


class Weights(Protocol):
    """What multiplies the products of one question's queries."""

    @property
    def by_row(self) -> bool:
        """Whether all entries of a stored row have the same. Weights are asked for by row then, else by entry."""
        ...

    @property
    def tiny(self) -> float:
        """How far a score may be off beyond what is relative: of numbers too small to be normal ones."""
        ...

    @property
    def most_queries(self) -> int:
        """Whose factors the screen may hold at once."""
        ...

    def weigh(
        self, products: NDArray[np.float64], query: NDArray[np.int64] | int, of: NDArray[np.int64] | None, check: Check
    ) -> NDArray[np.float64]:
        """float64[c]: the canonical scores of canonical products, which may be written over. `of` are their rows or
        entries; None for all entries that stay.
        """
        ...

    def at(self, query: int, of: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        """float64[c]: the weights of some rows or entries for one query, to a few roundings of float64."""
        ...

    def row_factors(
        self, rows: KeyRows, queries: NDArray[np.int64], codes: CodesCache, check: Check
    ) -> RowFactors | None:
        """For the screen, of the queries with these numbers, each to a scale of its own; None if it has none."""
        ...


class Score:
    """A score by its name. By default it is the inner product."""

    name = "dot"
    absolute = False
    weighted = False
    """Whether products are weighed: `weights` is then not None."""

    def weights(self, view: View, layer: str, rows: KeyRows, queries: NDArray[np.float32]) -> Weights | None:
        return None

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sum of each group's scores; absolute ones to 1e-6 relative. Raises Inexact where a key is
        not finite.
        """
        return grouping.absolute(queries) if self.absolute else grouping.sums(queries)


class Absolute(Score):
    name = "abs"
    absolute = True


class Cosine(Score):
    name = "cosine"
    weighted = True

    def weights(self, view: View, layer: str, rows: KeyRows, queries: NDArray[np.float32]) -> Weights:
        return Lengths(view, layer, rows, norms(queries))

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """sum_t x_t . q / (|x_t| |q|) = (sum_t x_t / |x_t|) . q / |q|: of each group the sum of its keys at length 1.

        The two ways in which it is added up, and what a rerun adds window by window, lie within (T + 32) 2^-53 for each
        of a group's T slots of one another.
        """
        rows = grouping.rows()
        lengths = divisors(rows.norms)[rows.rows_of(grouping.groups.entries)]
        found = grouping.sums(queries, KeyWeights(("lengths",), lambda _: lengths, divided=True))
        return found / divisors(norms(queries))[:, None]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Of a cosine: one over the lengths of key and query."""

    view: View
    layer: str
    rows: KeyRows
    of_queries: NDArray[np.float64]
    """float64[n]."""
    by_row = True
    tiny = 2.0**-149
    most_queries = 1 << 30

    def weigh(
        self, products: NDArray[np.float64], query: NDArray[np.int64] | int, of: NDArray[np.int64] | None, check: Check
    ) -> NDArray[np.float64]:
        found = cosines(products, self.rows.norms[of], self.of_queries[query])
        return as_float32(found).astype(np.float64)

    def at(self, query: int, of: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        found: NDArray[np.float64] = 1.0 / (divisors(self.rows.norms[of]) * divisors(self.of_queries[query]))
        return found

    def row_factors(self, rows: KeyRows, queries: NDArray[np.int64], codes: CodesCache, check: Check) -> RowFactors:
        def made() -> RowFactors:
            lengths = rows.norms
            there = np.isfinite(lengths) & (lengths > 0)
            least = np.min(lengths, where=there, initial=np.inf)
            found = np.zeros((1, len(lengths)), dtype=np.float32)  # for keys of no length, whose cosine is 0
            with np.errstate(under="ignore"):
                found[0, there] = least / lengths[there]
            return RowFactors(found, found)

        return self.view.cache.get(("row factors", self.layer, "lengths"), made, check)


_BY_NAME: Mapping[str, Score] = {score.name: score for score in (Score(), Absolute(), Cosine())}
DOT = _BY_NAME["dot"]


def named(name: str) -> Score:
    """The score of that name. Raises BadInput where there is none."""
    if name not in _BY_NAME:
        names = ", ".join(f'"{known}"' for known in _BY_NAME)
        others = '"contribution" (with target=) or "gradient"'
        raise BadInput(f"Unknown score {name!r}.", hint=f"Choose {names}, {others}.", field="score")
    return _BY_NAME[name]
