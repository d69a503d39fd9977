"""The accuracy over the simplex of head weights, and the patterns that it shows.

Shapes: M networks, W weightings of their heads, P pairs. The weights of the three heads sum to 3, so the centre of the
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
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.tri import Triangulation
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.claims import Claim, judge, judged, plain_percent, verdict
from dualform_studies.figures import new_figure
from dualform_studies.memorisation.torus import TOKEN_INK
from dualform_studies.memorisation.transformer import HEADS, NAMES, PAIRS, TOKENS, AttentionOnly, Ensemble, right
from dualform_studies.report import Page, Report, report_folder

PATTERNS = {
    "one corner": "one head is mostly responsible",
    "two corners": "one head is useless",
    "between two": "two heads remember together",
    "none": "no pattern",
}
"""By pattern, what the text makes of it."""
UNPATTERNED = ("all corners large", "no corner large", "some corners large")
"""What a class of no pattern may be like."""
RULE = (2 / 3, 1 / 4)
RULES = (RULE, (3 / 4, 1 / 3), (3 / 5, 1 / 6))
"""Accuracy from which a place is large, and difference of two accuracies from which one is greater."""
_OFTEN = 0.05
"""Of all classes: from here on a pattern is no accident of one seed."""
_TOLERANCE = 1e-9


def weightings(per_side: int) -> NDArray[np.float64]:
    """float64[W, H]: a triangular grid with so many intervals along a side; a multiple of 3 puts one in the centre."""
    grid = [(a, b, per_side - a - b) for a in range(per_side + 1) for b in range(per_side + 1 - a)]
    return np.array(grid, dtype=np.float64) * (HEADS / per_side)


@torch.no_grad()
def weighed(network: AttentionOnly, weights: NDArray[np.float64]) -> Tensor:
    """Logits [W, P, N] of all pairs."""
    logits: Tensor = network(PAIRS, torch.from_numpy(weights).float()[:, None])
    return logits


def next_token_of(logits: Tensor, facts: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[W, P], twice: how likely each pair's next token is, and its logit over the greatest of the others."""
    true = torch.nn.functional.one_hot(facts, len(TOKENS)).bool()
    lead = logits[:, true] - logits.masked_fill(true, -torch.inf).amax(dim=-1)
    return logits.softmax(dim=-1)[:, true].double().numpy(), lead.double().numpy()


def classes_of(facts: Tensor) -> dict[str, NDArray[np.bool_]]:
    """By next token that any pair has: bool[P], the pairs that have it."""
    members = {token: (facts == at).numpy() for at, token in enumerate(TOKENS)}
    return {token: pairs for token, pairs in members.items() if pairs.any()}


def corner(weights: NDArray[np.float64], head: int) -> NDArray[np.bool_]:
    """bool[W]: where one head has at least two thirds of the weight."""
    return np.asarray(weights[:, head] >= 2 - _TOLERANCE)


def between(weights: NDArray[np.float64], silent: int) -> NDArray[np.bool_]:
    """bool[W]: where the two other heads have a third of the weight each, and this one a sixth at most."""
    others = np.delete(weights, silent, axis=1)
    return np.asarray((others >= 1 - _TOLERANCE).all(axis=1) & (weights[:, silent] <= 1 / 2 + _TOLERANCE))


def kind_of(weights: NDArray[np.float64], accuracy: NDArray[np.float64], rule: tuple[float, float] = RULE) -> str:
    """One of PATTERNS, or of UNPATTERNED where there is none; of a class with this accuracy, float64[W]."""
    large, greater = (least - _TOLERANCE for least in rule)
    corners = np.array([accuracy[corner(weights, head)].mean() for head in range(HEADS)])
    third, second, first = np.sort(corners)
    middles = [(accuracy[between(weights, head)].mean(), np.delete(corners, head).max()) for head in range(HEADS)]
    if first >= large and first - second >= greater:
        return "one corner"
    if second >= large and second - third >= greater:
        return "two corners"
    if any(middle >= large and middle - best >= greater for middle, best in middles):
        return "between two"
    return "all corners large" if third >= large else "some corners large" if first >= large else "no corner large"


@dataclass(frozen=True, eq=False)
class ClassTriangle:
    """The accuracy of one network on the pairs of one next token, float64[W], and how many pairs these are."""

    seed: int
    token: str
    pairs: int
    accuracy: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Triangles:
    """Of many networks: `weights` float64[W, H], and the accuracy `overall`, float64[M, W], and by class."""

    weights: NDArray[np.float64]
    overall: NDArray[np.float64]
    classes: Sequence[ClassTriangle]

    def kinds(self, rule: tuple[float, float] = RULE) -> list[str]:
        """Of each class."""
        return [kind_of(self.weights, one.accuracy, rule) for one in self.classes]

    def counts(self, rule: tuple[float, float] = RULE) -> dict[str, int]:
        """How many classes show each pattern."""
        found = Counter(_pattern(kind) for kind in self.kinds(rule))
        return {pattern: found[pattern] for pattern in PATTERNS}

    def example(self, pattern: str) -> ClassTriangle | None:
        """The class of the most pairs that shows a pattern, of several that of the first seed; None if none does."""
        shown = [one for one, kind in zip(self.classes, self.kinds(), strict=True) if _pattern(kind) == pattern]
        return max(shown, key=lambda one: one.pairs, default=None)


def _pattern(kind: str) -> str:
    return kind if kind in PATTERNS else "none"


def triangles_of(ensemble: Ensemble, seeds: Sequence[int], per_side: int) -> Triangles:
    """Every class of every network; `seeds` name the networks."""
    weights, overall, classes = weightings(per_side), [], []
    for network, facts, seed in zip(ensemble.networks(), ensemble.facts, seeds, strict=True):
        known = right(weighed(network, weights), facts)
        overall.append(known.mean(axis=1))
        for token, pairs in classes_of(facts).items():
            classes.append(ClassTriangle(seed, token, int(pairs.sum()), known[:, pairs].mean(axis=1)))
    return Triangles(weights, np.stack(overall), classes)


def simplex_claims(triangles: Triangles) -> list[Claim]:
    """That accuracy is best in the centre, and that classes show each of the three patterns."""
    overall, classes = triangles.overall, len(triangles.classes)
    best = overall.max(axis=1, keepdims=True)
    centre = np.abs(triangles.weights - 1).sum(axis=1).argmin()
    central = int((overall[:, centre] >= best[:, 0]).sum())
    by_rule = [triangles.counts(rule) for rule in RULES]
    named = [pattern for pattern in PATTERNS if pattern != "none"]
    found = []
    for pattern in named:
        counts = [one[pattern] for one in by_rule]
        other = f" ({min(counts)} to {max(counts)})" if min(counts) < max(counts) else ""
        found.append(f"{pattern}: {counts[0]}{other}")
    often, kinds = max(1, ceil(_OFTEN * classes)), triangles.kinds()
    return [
        judge(
            "memorisation.centre",
            central / len(overall),
            f"{central} of {len(overall)} networks; {100 * float((overall == best).mean()):.0f} % of the weightings "
            "are as good as the best",
        ),
        judged(
            "memorisation.triangles",
            verdict(min(by_rule[0][pattern] for pattern in named), often, 1),
            f"{', '.join(found)} of {classes} classes (in brackets: by other rules); no pattern: {by_rule[0]['none']} "
            f"({', '.join(f'{kind}: {kinds.count(kind)}' for kind in UNPATTERNED)})",
            classes=classes,
            often=often,
            share=plain_percent(_OFTEN),
        ),
    ]


_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
"""Where head 1, 2 and 3 stand alone."""
_ACCURACY: Any = {"vmin": 0, "vmax": 100, "cmap": "viridis"}


def draw_simplexes(path: Path, weights: NDArray[np.float64], known: NDArray[np.bool_], facts: Tensor) -> Path:
    """All pairs, and for each next token the pairs that have it; numbers are accuracies in the corners. `known` is
    bool[W, P]."""
    named = {"all 25 pairs": np.ones(len(PAIRS), np.bool_)}
    for token, pairs in classes_of(facts).items():
        title = f"the {pairs.sum()} pairs that give" if pairs.sum() > 1 else "the pair that gives"
        named[f"{title} {token}"] = pairs
    with new_figure(path, 5.1) as figure:
        axes = figure.subplots(2, 3)
        for panel, (title, pairs) in zip(axes.flat, named.items(), strict=False):
            drawn = _steps(panel, weights, 100 * known[:, pairs].mean(axis=1))
            panel.set_title(title, pad=3)
        for panel in axes.flat[len(named) :]:
            panel.set_axis_off()
        figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02).set_label("accuracy (%)")
    return path


def draw_patterns(path: Path, triangles: Triangles) -> Path:
    """One triangle of each pattern that was found."""
    counts = triangles.counts()
    with new_figure(path, 2.9) as figure:
        axes = figure.subplots(1, len(PATTERNS))
        for panel, (pattern, meaning) in zip(axes, PATTERNS.items(), strict=True):
            title = f"{pattern}: {counts[pattern]} of {len(triangles.classes)}\n{fill(meaning, 20)}"
            panel.text(0.5, 1.17, title, ha="center", va="bottom", fontsize=8)
            one, words = triangles.example(pattern), "not found"
            if one is None:
                _outline(panel, ("head 1", "head 2", "head 3"), 7)
            else:
                _steps(panel, triangles.weights, 100 * one.accuracy)
                words = f"seed {one.seed}: the {one.pairs} pairs\nthat give {one.token}"
            panel.text(0.5, -0.36, words, ha="center", va="top", fontsize=7.5)
            panel.set(xlim=(-0.18, 1.18), ylim=(-0.62, 1.66))
        colours = ScalarMappable(Normalize(_ACCURACY["vmin"], _ACCURACY["vmax"]), _ACCURACY["cmap"])
        figure.colorbar(colours, ax=axes, shrink=0.7, pad=0.01).set_label("accuracy (%)")
    return path


def draw_inputs(path: Path, weights: NDArray[np.float64], logits: Tensor, facts: Tensor) -> Path:
    """Each pair by itself: how likely its next token is, and within which line it is the most likely one; of logits
    [W, P, N]."""
    side, (x, y) = len(TOKENS), (weights / HEADS @ _CORNERS).T
    likely, lead = next_token_of(logits, facts)
    with new_figure(path, 7.4) as figure:
        axes = figure.subplots(side, side)
        for at, panel in enumerate(axes.flat):
            # A probability has no steps: it may be drawn smooth.
            style: Any = {"vmin": 0, "vmax": 1, "cmap": "Blues", "shading": "gouraud", "rasterized": True}
            drawn = panel.tripcolor(x, y, likely[:, at], **style)
            if lead[:, at].min() < 0 < lead[:, at].max():
                panel.tricontour(Triangulation(x, y), lead[:, at], [0], colors="black", linewidths=1.1)
            token = int(facts[at])
            panel.set_title(f"{NAMES[at]} → {TOKENS[token]}", color=TOKEN_INK[token], pad=2, fontsize=9)
            _outline(panel, ("1", "2", "3"), 6.5)
        figure.colorbar(drawn, ax=axes, shrink=0.5, pad=0.02).set_label("probability of the pair's next token")
    return path


def _steps(panel: Axes, weights: NDArray[np.float64], heights: NDArray[np.float64]) -> Any:
    """A hexagon for each weighting; those of a fine grid touch each other. Returns what a colour bar is made from."""
    x, y = (weights / HEADS @ _CORNERS).T
    drawn = panel.scatter(x, y, c=heights, marker="H", s=12, linewidths=0, **_ACCURACY)
    alone = heights[weights.argmax(axis=0)]
    _outline(panel, [f"head {head}\n{accuracy:.0f} %" for head, accuracy in enumerate(alone, start=1)], 7)
    panel.set(xlim=(-0.18, 1.18), ylim=(-0.3, 1.12))
    return drawn


def _outline(panel: Axes, names: Sequence[str], size: float) -> None:
    panel.plot(*_CORNERS[[0, 1, 2, 0]].T, color="0.3", linewidth=0.7)
    panel.plot(*_CORNERS.mean(axis=0), marker="+", color="black", markersize=6, markeredgewidth=1.1)
    panel.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.14, 1.04))
    panel.set_axis_off()
    for name, (x, y), vertical, shift in zip(
        names, _CORNERS, ("top", "top", "bottom"), (-0.03, -0.03, 0.02), strict=True
    ):
        panel.text(x, y + shift, name, ha="center", va=vertical, fontsize=size)


def simplex_section(page: Page, network: AttentionOnly, facts: Tensor, triangles: Triangles) -> Report:
    """Figures of one network over the weightings of all, and one of the patterns of all."""
    folder, weights = report_folder(page.run), triangles.weights
    logits = weighed(network, weights)
    page.heading("The simplex of head weights")
    page.paragraph(
        "The triangles vary the heads' weights, which sum to 3: the cross in the middle is the network as trained, a "
        "corner is one head alone, three times as strong."
    )
    page.figure(
        draw_simplexes(folder / "simplex.png", weights, right(logits, facts), facts),
        "Accuracy over the simplex of head weights, in the steps that it has; at the corners, that of one head alone.",
    )
    page.figure(
        draw_inputs(folder / "simplex-inputs.png", weights, logits, facts),
        "The same for each pair (pair → next token): the probability of its next token, and the border of the "
        "weights with which that token is the most likely one.",
    )
    page.figure(
        draw_patterns(folder / "simplex-patterns.png", triangles),
        f"The four patterns, found in {len(triangles.overall)} networks of different seeds by a rule that was fixed "
        "before: of each pattern the class of the most pairs, and of several the one of the first seed.",
    )
    return {"patterns": triangles.counts()}
