"""Few cases in place of a full product: every two values of different parameters come together in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Of the product of some parameters' values, the first case that has most new pairs, until there are none left.

    @pytest.mark.parametrize(("backend", "score", "where"), pairwise(BACKENDS, SCORES, MASKS))
    """
    cases = list(product(*(range(len(values)) for values in parameters)))
    pairs = {case: frozenset(combinations(enumerate(case), 2)) for case in cases}
    found, left = [], frozenset().union(*pairs.values())
    while left:
        best = max(cases, key=lambda case: len(pairs[case] & left))
        found.append(tuple(values[at] for values, at in zip(parameters, best, strict=True)))
        left -= pairs[best]
    return found
