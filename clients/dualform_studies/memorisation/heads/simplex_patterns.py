"""Which of four patterns the triangle of a class shows, by a rule that was fixed before any triangle was seen.

The text names what one sees when one plays with seeds: the accuracy on a class is greater in one corner than in the
others ("this head is mostly responsible"), large in two corners ("one head is useless"), large in between two heads
("both heads are remembering together"), or there is no pattern.

The rule. A corner is where one head has at least two thirds of the weight; between two heads is where both have at
least a third and the third head at most a sixth. The accuracy of a place is its mean over the weightings there. An
accuracy is large from 2/3 on, and greater than another if it exceeds it by at least 1/4. The first of these that holds
is the pattern:

    one corner      the best corner is large, and greater than the second
    two corners     the second corner is large, and greater than the third
    between two     between two heads it is large, and greater than in either of their corners
    none            anything else; of these, all corners may be large (each head knows the class), or no corner

Whether the counts hang on its two numbers, a stricter rule and a laxer one tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.heads.simplex import Simplex, classes_of, over_simplex
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import HEADS, AttentionOnly

Pattern: TypeAlias = Literal["one corner", "two corners", "between two", "none"]
PATTERNS: dict[Pattern, str] = {
    "one corner": "one head is mostly responsible",
    "two corners": "one head is useless",
    "between two": "two heads remember together",
    "none": "no pattern",
}
"""By pattern, what the text makes of it."""
Unpatterned: TypeAlias = Literal["all corners large", "no corner large", "some corners large"]
UNPATTERNED: tuple[Unpatterned, ...] = ("all corners large", "no corner large", "some corners large")
"""What a class of no pattern may be like."""
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Rule:
    large: float = 2 / 3
    """Accuracy from which a place is large."""
    greater: float = 1 / 4
    """Difference of two accuracies from which one is greater."""

    def pattern(self, simplex: Simplex, accuracy: NDArray[np.float64]) -> Pattern:
        """Of one class: its accuracy float64[W] at the weightings of the simplex."""
        corners = _corners(simplex, accuracy)
        first, second, third = np.sort(corners)[::-1]
        if self._stands_out(first, second):
            return "one corner"
        if self._stands_out(second, third):
            return "two corners"
        for silent in range(HEADS):
            middle = float(accuracy[between(simplex, silent)].mean())
            if self._stands_out(middle, float(np.delete(corners, silent).max())):
                return "between two"
        return "none"

    def unpatterned(self, simplex: Simplex, accuracy: NDArray[np.float64]) -> Unpatterned:
        """Of one class that shows no pattern."""
        large = [self._is_large(corner) for corner in _corners(simplex, accuracy)]
        return "all corners large" if all(large) else "some corners large" if any(large) else "no corner large"

    def _is_large(self, accuracy: float) -> bool:
        return accuracy >= self.large - _TOLERANCE

    def _stands_out(self, accuracy: float, other: float) -> bool:
        return self._is_large(accuracy) and accuracy - other >= self.greater - _TOLERANCE


RULES = {"the rule": Rule(), "the stricter rule": Rule(3 / 4, 1 / 3), "the laxer rule": Rule(3 / 5, 1 / 6)}


def _corners(simplex: Simplex, accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[H]: of each head's corner."""
    return np.array([accuracy[corner(simplex, head)].mean() for head in range(HEADS)])


def corner(simplex: Simplex, head: int) -> NDArray[np.bool_]:
    """bool[W]: where one head has at least two thirds of the weight."""
    return np.asarray(simplex.shares[:, head] >= 2 / 3 - _TOLERANCE)


def between(simplex: Simplex, silent: int) -> NDArray[np.bool_]:
    """bool[W]: where the two other heads have a third of the weight each, and this one a sixth at most."""
    others = np.delete(simplex.shares, silent, axis=1)
    return np.asarray((others >= 1 / 3 - _TOLERANCE).all(axis=1) & (simplex.shares[:, silent] <= 1 / 6 + _TOLERANCE))


@dataclass(frozen=True, eq=False)
class ClassTriangle:
    """The accuracy of one network on the pairs of one next token, over the simplex."""

    seed: int
    token: str
    pairs: int
    """How many pairs have the token."""
    accuracy: NDArray[np.float64]
    """float64[W]."""
    pattern: Pattern


@dataclass(frozen=True)
class Centre:
    """How the centre of the simplex, the network as trained, compares with the rest, over all pairs."""

    accuracy: float
    best: float
    """The greatest accuracy on the simplex."""
    as_good: float
    """The fraction of the weightings that are as good as the best."""

    @property
    def is_best(self) -> bool:
        return self.accuracy >= self.best


@dataclass(frozen=True, eq=False)
class Triangles:
    """The triangles of many networks."""

    simplex: Simplex
    """Of one of them; its weightings are everyone's."""
    classes: Sequence[ClassTriangle]
    centres: Sequence[Centre]

    def counts(self, rule: Rule | None = None) -> dict[Pattern, int]:
        """How many classes show each pattern; by another rule where one is given."""
        found = Counter(
            one.pattern if rule is None else rule.pattern(self.simplex, one.accuracy) for one in self.classes
        )
        return {pattern: found[pattern] for pattern in PATTERNS}

    def unpatterned(self) -> dict[Unpatterned, int]:
        """What the classes that show no pattern are like."""
        found = Counter(Rule().unpatterned(self.simplex, one.accuracy) for one in self.classes if one.pattern == "none")
        return {kind: found[kind] for kind in UNPATTERNED}

    def examples(self) -> dict[Pattern, ClassTriangle]:
        """Of each pattern that occurs, the triangle of the most pairs; of several, that of the first seed."""
        return {
            pattern: max((one for one in self.classes if one.pattern == pattern), key=lambda one: one.pairs)
            for pattern, count in self.counts().items()
            if count
        }


def triangles_of(
    networks: Sequence[AttentionOnly], facts: Sequence[Facts], seeds: Sequence[int], per_side: int
) -> Triangles:
    """Every class of every network, by the rule; `seeds` name the networks."""
    classes, centres = [], []
    for network, own, seed in zip(networks, facts, seeds, strict=True):
        simplex = over_simplex(network, own, per_side)
        overall = simplex.accuracy
        best = float(overall.max())
        centres.append(Centre(float(overall[simplex.at(1, 1, 1)]), best, float((overall == best).mean())))
        for token, pairs in classes_of(own).items():
            accuracy = simplex.accuracy_of(pairs)
            classes.append(ClassTriangle(seed, token, int(pairs.sum()), accuracy, Rule().pattern(simplex, accuracy)))
    return Triangles(simplex, classes, centres)
