"""The accuracy over the simplex of head weights, and the patterns that it shows.

Shapes: W weightings of the heads, P pairs, N words. The weights of the three heads sum to 3, so the centre of the
simplex, (1, 1, 1), is the network as trained, and a corner is one head alone, three times as strong.

The text names what one sees when one plays with seeds: the accuracy on a class is greater in one corner than in the
others ("this head is mostly responsible"), large in two corners ("one head is useless"), large in between two heads
("both heads are remembering together"), or there is no pattern. A rule that was fixed before any triangle was seen
tells them apart. A corner is where one head has at least two thirds of the weight; between two heads is where both have
at least a third and the third head at most a sixth. The accuracy of a place is its mean over the weightings there. An
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
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.tri import Triangulation
from numpy.typing import NDArray

from dualform_studies.figures import new_figure
from dualform_studies.memorisation.torus import TOKEN_INK
from dualform_studies.memorisation.transformer import HEADS, TOKENS, AttentionOnly, Facts


@dataclass(frozen=True, eq=False)
class Simplex:
    weights: NDArray[np.float64]
    """float64[W, H], from 0 to 3, each row summing to 3."""
    right: NDArray[np.bool_]
    """bool[W, P]: whether the next token of a pair is the most likely one."""
    probability: NDArray[np.float64]
    """float64[W, P]: how likely it is."""
    lead: NDArray[np.float64]
    """float64[W, P]: its logit over the greatest of the others; nats."""

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[W, H]: the weights as parts of their sum."""
        return np.asarray(self.weights / self.weights.sum(axis=1, keepdims=True))

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """float64[W], over all pairs."""
        return np.asarray(self.right.mean(axis=1))

    def accuracy_of(self, pairs: NDArray[np.bool_]) -> NDArray[np.float64]:
        """float64[W], over some of the pairs: bool[P]."""
        return np.asarray(self.right[:, pairs].mean(axis=1))

    def at(self, *weights: float) -> int:
        """The number of a weighting. Raises IndexError for one that is not on the grid."""
        return int(np.flatnonzero(np.isclose(self.weights, weights).all(axis=1))[0])


def weightings(per_side: int) -> NDArray[np.float64]:
    """float64[W, H]: a triangular grid with so many intervals along a side; a multiple of 3 puts one in the centre."""
    grid = [(a, b, per_side - a - b) for a in range(per_side + 1) for b in range(per_side + 1 - a)]
    return np.array(grid, dtype=np.float64) * (HEADS / per_side)


@torch.no_grad()
def over_simplex(network: AttentionOnly, facts: Facts, per_side: int) -> Simplex:
    weights = weightings(per_side)
    logits = network(facts.pairs, torch.from_numpy(weights).float()[:, None])
    true = torch.nn.functional.one_hot(facts.next_tokens, len(TOKENS)).bool()
    lead = logits[:, true] - logits.masked_fill(true, -torch.inf).amax(dim=-1)
    likely = logits.softmax(dim=-1)[:, true]
    return Simplex(weights, facts.right(logits), likely.double().numpy(), lead.double().numpy())


def classes_of(facts: Facts) -> dict[str, NDArray[np.bool_]]:
    """By next token that any pair has: bool[P], the pairs that have it."""
    members = {token: (facts.next_tokens == at).numpy() for at, token in enumerate(TOKENS)}
    return {token: pairs for token, pairs in members.items() if pairs.any()}


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


_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
"""Where head 1, 2 and 3 stand alone."""
_HEXAGON = 12
"""Points of type, squared: those of a fine grid touch each other."""
_ACCURACY: Any = {"vmin": 0, "vmax": 100, "cmap": "viridis"}


def draw_simplexes(path: Path, simplex: Simplex, facts: Facts) -> Path:
    """All pairs, and for each next token the pairs that have it; numbers are accuracies in the corners."""
    named: list[tuple[str, NDArray[np.float64]]] = [("all 25 pairs", simplex.accuracy)]
    for token, pairs in classes_of(facts).items():
        title = f"the {pairs.sum()} pairs that give {token}" if pairs.sum() > 1 else f"the pair that gives {token}"
        named.append((title, simplex.accuracy_of(pairs)))
    with new_figure(path, 5.1) as figure:
        axes = figure.subplots(2, 3)
        for panel, (title, accuracy) in zip(axes.flat, named, strict=False):
            drawn = _steps(panel, simplex, 100 * accuracy)
            panel.set_title(title, pad=3)
        for panel in axes.flat[len(named) :]:
            panel.set_axis_off()
        figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02).set_label("accuracy (%)")
    return path


def draw_patterns(path: Path, triangles: Triangles) -> Path:
    """One triangle of each pattern that was found."""
    counts, examples = triangles.counts(), triangles.examples()
    with new_figure(path, 2.9) as figure:
        axes = figure.subplots(1, len(PATTERNS))
        for panel, (pattern, meaning) in zip(axes, PATTERNS.items(), strict=True):
            title = f"{pattern}: {counts[pattern]} of {len(triangles.classes)}\n{fill(meaning, 20)}"
            panel.text(0.5, 1.17, title, ha="center", va="bottom", fontsize=8)
            if pattern in examples:
                one = examples[pattern]
                _steps(panel, triangles.simplex, 100 * one.accuracy)
                words = f"seed {one.seed}: the {one.pairs} pairs\nthat give {one.token}"
            else:
                _outline(panel, ("head 1", "head 2", "head 3"), 7)
                words = "not found"
            panel.text(0.5, -0.36, words, ha="center", va="top", fontsize=7.5)
            panel.set(xlim=(-0.18, 1.18), ylim=(-0.62, 1.66))
        colours = ScalarMappable(Normalize(_ACCURACY["vmin"], _ACCURACY["vmax"]), _ACCURACY["cmap"])
        figure.colorbar(colours, ax=axes, shrink=0.7, pad=0.01).set_label("accuracy (%)")
    return path


def draw_inputs(path: Path, simplex: Simplex, facts: Facts) -> Path:
    """Each pair by itself: how likely its next token is, and within which line it is the most likely one."""
    side = len(TOKENS)
    with new_figure(path, 7.4) as figure:
        axes = figure.subplots(side, side)
        for at, panel in enumerate(axes.flat):
            x, y = _places(simplex)
            # A probability has no steps: it may be drawn smooth.
            style: Any = {"vmin": 0, "vmax": 1, "cmap": "Blues", "shading": "gouraud", "rasterized": True}
            drawn = panel.tripcolor(x, y, simplex.probability[:, at], **style)
            lead = simplex.lead[:, at]
            if lead.min() < 0 < lead.max():
                panel.tricontour(Triangulation(x, y), lead, [0], colors="black", linewidths=1.1)
            token = int(facts.next_tokens[at])
            panel.set_title(f"{facts.names[at]} → {TOKENS[token]}", color=TOKEN_INK[token], pad=2, fontsize=9)
            _outline(panel, ["1", "2", "3"], 6.5)
        bar = figure.colorbar(drawn, ax=axes, shrink=0.5, pad=0.02)
        bar.set_label("probability of the pair's next token")
    return path


def _steps(panel: Axes, simplex: Simplex, heights: NDArray[np.float64]) -> Any:
    """A hexagon for each weighting; returns what a colour bar is made from."""
    drawn = panel.scatter(*_places(simplex), c=heights, marker="H", s=_HEXAGON, linewidths=0, **_ACCURACY)
    alone = [heights[simplex.at(*(3.0 * (np.arange(3) == head)))] for head in range(3)]
    _outline(panel, [f"head {head}\n{accuracy:.0f} %" for head, accuracy in enumerate(alone, start=1)], 7)
    panel.set(xlim=(-0.18, 1.18), ylim=(-0.3, 1.12))
    return drawn


def _outline(panel: Axes, names: Sequence[str], size: float) -> None:
    outline = _CORNERS[[0, 1, 2, 0]]
    panel.plot(outline[:, 0], outline[:, 1], color="0.3", linewidth=0.7)
    panel.plot(*_CORNERS.mean(axis=0), marker="+", color="black", markersize=6, markeredgewidth=1.1)
    panel.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.14, 1.04))
    panel.set_axis_off()
    for name, corner, (vertical, shift) in zip(
        names, _CORNERS, (("top", -0.03), ("top", -0.03), ("bottom", 0.02)), strict=True
    ):
        panel.text(corner[0], corner[1] + shift, name, ha="center", va=vertical, fontsize=size)


def _places(simplex: Simplex) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at = simplex.shares @ _CORNERS
    return at[:, 0], at[:, 1]
