"""Accuracy over the simplex of head weights, as triangles. Accuracies are steps, and are drawn as steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.tri import Triangulation
from numpy.typing import NDArray

from dualform_studies.memorisation.heads.simplex import Simplex, classes_of
from dualform_studies.memorisation.heads.simplex_patterns import PATTERNS, Triangles
from dualform_studies.memorisation.torus.figures import TOKEN_INK
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.pages.frame import new_figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
"""Where head 1, 2 and 3 stand alone."""
_PIXELS = 400
"""Along the lower side."""
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
    """Every point in the colour of the weighting nearest to it; returns what a colour bar is made from."""
    drawn = panel.imshow(
        heights_at(simplex, heights, _PIXELS), extent=(0, 1, 0, _CORNERS[2, 1]), origin="lower",
        interpolation="nearest", **_ACCURACY,
    )  # fmt: skip
    alone = [heights[simplex.at(*(3.0 * (np.arange(3) == head)))] for head in range(3)]
    _outline(panel, [f"head {head}\n{accuracy:.0f} %" for head, accuracy in enumerate(alone, start=1)], 7)
    panel.set(xlim=(-0.18, 1.18), ylim=(-0.3, 1.12))
    return drawn


def heights_at(simplex: Simplex, heights: NDArray[np.float64], pixels: int) -> NDArray[np.float64]:
    """float64[rows, pixels]: the height float64[W] of the nearest weighting, by rows from below; NaN outside."""
    side = round((np.sqrt(8 * len(heights) + 1) - 3) / 2)
    rows = round(pixels * _CORNERS[2, 1])
    y, x = (np.indices((rows, pixels)) + 0.5) / np.array([rows / _CORNERS[2, 1], pixels])[:, None, None]
    third = y / _CORNERS[2, 1]
    second = x - third / 2
    places = np.stack([1 - second - third, second, third], axis=-1) * side
    nearest = np.rint(places).astype(np.int64)
    # Three numbers that are rounded need not add up as they did: the one that was rounded most gives way.
    gives = np.abs(places - nearest).argmax(axis=-1)[..., None]
    surplus = nearest.sum(axis=-1, keepdims=True) - side
    np.put_along_axis(nearest, gives, np.take_along_axis(nearest, gives, axis=-1) - surplus, axis=-1)
    table = np.full((side + 1, side + 1), np.nan)
    at = np.rint(simplex.shares * side).astype(np.int64)
    table[at[:, 0], at[:, 1]] = heights
    inside = (places >= 0).all(axis=-1)
    first, second = np.clip(nearest[..., :2], 0, side).transpose(2, 0, 1)
    return np.where(inside, table[first, second], np.nan)


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
