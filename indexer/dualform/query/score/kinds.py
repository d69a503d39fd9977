"""The kinds of score: dot, abs and cosine. A new score is a class here and a line in the table below.

Questions, the wire and the command line carry a score by its name and know nothing else of it. A new score provides
what `Kind` below and query/score/canonical.py list:

- a name;
- which searchers find its best slots (`searchers`), and how sums are made (`sums`).

A score that follows from the inner product alone is a `ProductKind` and provides, besides:

- how an inner product becomes a score (`of`). If that rounds nothing, and moves no two inner products further apart,
  the searchers of rows rank by it as they stand. A score that the compiled screen does not know leaves the screen out;
- when its sums follow from sums of keys (`additive`, which rerun asks as well).

A score that depends on more, as a cosine, brings a searcher of its own, or a scorer that says how far its scores lie
from the canonical ones (query/search/scan.py) to the searcher that scans.

A rerun asks the same of windows of keys, which are memories of their own without values: the best of all windows are
among the best of each, and sums add up.

A score that weighs each slot by more than its key, as its contribution along a direction, is none of these: it differs
between slots that share a key, and its direction travels with the question. See query/directed.py.

The inner product of key and query over both their lengths: what they have in common, however long they are.

    x . q / (|x| |q|),    0 where either is of no length

All of it in float64, the lengths canonical like the products (canonical.py): a key or a query that is taken 2^n times
as long gives the same bits. Where the inner product of the paper's equation 13 also says how long a key is, a cosine
says its direction alone. Keys of one direction have one cosine, of which float64 may round the last bits apart; so
cosines rank by the float32 that is reported, and then by slot.

The absolute value of the inner product, as the paper takes it where inputs can be negative.

Where neither a group's keys nor the query change sign, as after a relu, no score changes sign either, and the sum of
absolute values is the absolute value of the signed sum. Other groups need every score (query/sums/grouping.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query.score.backends import Backend
from dualform.query.score.canonical import F, ProductScore, Score, divisors, norms, score_rows
from dualform.query.search.scan import CosineScorer, Searcher
from dualform.query.search.screen import ScanSearcher, row_searchers
from dualform.query.sums.grouping import Grouping, RowDivisors
from dualform.query.sums.key_sums import KeySums


class Absolute:
    name = "abs"
    linear = False
    screens_absolute = True

    def of(self, products: F) -> F:
        np.abs(products, out=products)
        return products

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return row_searchers(backend, self)

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """To 1e-6 relative."""
        if grouping.many:
            return grouping.every_absolute(queries)
        known = grouping.key_sums()
        sums, additive = score_rows(known.sums, queries), self.additive(known, queries)
        if not additive.all():
            some, mixed = np.flatnonzero(~additive.all(axis=1)), np.flatnonzero(~additive.all(axis=0))
            cells = np.ix_(some, mixed)
            sums[cells] = grouping.absolute(mixed, known.sums[mixed], sums[cells], queries[some])
        return np.abs(sums, out=sums)

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        one_sign = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
        additive: NDArray[np.bool_] = one_sign[:, None] & sums.one_sign
        return additive


class Cosine:
    name = "cosine"

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return [ScanSearcher(CosineScorer.of)]

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """sum_t x_t . q / (|x_t| |q|) = (sum_t x_t / |x_t|) . q / |q|: of each group the sum of its keys at length 1.

        With so many groups that their key sums are not kept, x_t . q / |x_t| is added in slot order. Either way has the
        same bits however it is asked for. The two, and what a rerun adds up window by window, lie within
        (T + 32) 2^-53 for each of a group's T slots of one another.
        """
        lengths = RowDivisors("lengths", divisors(grouping.rows().norms))
        if grouping.many:
            sums = grouping.by_slot(queries, divisors=lengths)
        else:
            sums = score_rows(grouping.key_sums(lengths).sums, queries)
        return sums / divisors(norms(queries))[:, None]


class Dot:
    name = "dot"
    linear = True
    screens_absolute = False

    def of(self, products: F) -> F:
        return products

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return row_searchers(backend, self)

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """One inner product with each group's sum of keys: sum_t x_t . q = (sum_t x_t) . q."""
        if grouping.many:
            return grouping.by_slot(queries)
        return score_rows(grouping.key_sums().sums, queries)

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        return np.ones((len(queries), len(sums.sums)), dtype=np.bool_)


class Kind(Score, Protocol):
    """A score, and how its best slots are found and its sums made. Shapes: n queries, G groups."""

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        """What finds the best entries, in the order in which they are tried. The last one must decide every query."""
        ...

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sum of each group's scores. Raises Inexact where a key is not finite."""
        ...


@runtime_checkable
class ProductKind(Kind, ProductScore, Protocol):
    """One that follows from the inner product alone. Of others a rerun adds up what `sums` makes of its windows."""

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool[n, G]: where a group's sum of scores is the score of its sum of keys."""
        ...


_BY_NAME: Mapping[str, Kind] = {score.name: score for score in (Dot(), Absolute(), Cosine())}


def named(name: str) -> Kind:
    """The score of that name. Raises BadInput where there is none."""
    if name not in _BY_NAME:
        names = ", ".join(f'"{known}"' for known in _BY_NAME)
        others = '"contribution" (with target=) or "gradient"'
        raise BadInput(f"Unknown score {name!r}.", hint=f"Choose {names}, {others}.", field="score")
    return _BY_NAME[name]
