"""What ranking and summing ask of a score. The kinds of score are in kinds/, one file each.

Shapes: n queries, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend, Floats

if TYPE_CHECKING:  # they import this file, because they ask the score
    from dualform.query.search.searcher import Searcher
    from dualform.query.sums.grouping import Grouping
    from dualform.query.sums.key_sums import KeySums

F = TypeVar("F", bound=Floats)


class Score(Protocol):
    """One kind of score, made of the inner product of a key and a query."""

    name: str
    """The name that questions give it."""
    linear: bool
    """Whether the score is the inner product itself: the rows that a backend finds best are then the best ones, and
    sums of scores follow from sums of keys alone."""
    screens_absolute: bool
    """What the compiled screen is told: whether rows rank by the absolute value of the inner product, or by the inner
    product itself. It knows no other score."""

    def of(self, products: F) -> F:
        """The scores of inner products, which may be written over.

        The two searchers of rows apply it to canonical inner products and to those of a scan, whose error bound has to
        hold for the scores as well: it must round nothing, and |of(a) - of(b)| must be at most |a - b|.
        """
        ...

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        """What finds the best entries, in the order in which they are tried. The last one must decide every query."""
        ...

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sum of each group's scores. Raises Inexact where a key is not finite."""
        ...

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool[n, G]: where a group's sum of scores is the score of its sum of keys."""
        ...
