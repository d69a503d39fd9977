"""What a score is. How each kind is searched and summed: kinds/."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from dualform.query.score.backends import Floats

F = TypeVar("F", bound=Floats)


class Score(Protocol):
    """One kind of score of a key and a query."""

    name: str
    """The name that questions give it."""


@runtime_checkable
class ProductScore(Score, Protocol):
    """A score that follows from the inner product of a key and a query alone."""

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
