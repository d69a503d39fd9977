"""The cases of a test: few in place of all, and never none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

T = TypeVar("T")


def pairwise(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Of the product of some parameters' values so many that every two values come together in one of them. In
    the product's order, so that a fixture of the first parameter is made once for each of its values.

    @pytest.mark.parametrize(("backend", "score", "where"), pairwise(BACKENDS, SCORES, MASKS))
    """
    values = [list(own) for own in parameters]
    cases = list(product(*(range(len(own)) for own in values)))
    pairs = {case: frozenset(combinations(enumerate(case), 2)) for case in cases}
    found, left = [], frozenset().union(*pairs.values())
    while left:
        found.append(max(cases, key=lambda case: len(pairs[case] & left)))
        left -= pairs[found[-1]]
    return [tuple(own[at] for own, at in zip(values, case, strict=True)) for case in sorted(found)]


def some(found: Iterable[T]) -> list[T]:
    """What a loop goes over that has all asserts of a test: there must be something, or the test holds of nothing."""
    listed = list(found)
    assert listed, "there is nothing to look at"
    return listed
