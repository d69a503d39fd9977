"""Accuracy over the simplex of head weights, as triangles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.tri import Triangulation
from numpy.typing import NDArray

from dualform_studies.memorisation.facts import TOKENS, Facts
from dualform_studies.memorisation.simplex import Simplex, classes_of
from dualform_studies.memorisation.torus_figures import TOKEN_INK
from dualform_studies.pages.frame import new_figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
"""Where head 1, 2 and 3 stand alone."""


def draw_simplexes(path: Path, simplex: Simplex, facts: Facts) -> Path:
    """All pairs, and for each next token the pairs that have it."""
    named: list[tuple[str, NDArray[np.float64], str]] = [("all 25 pairs", simplex.accuracy, "black")]
    for token, pairs in classes_of(facts).items():
        title = f"the {pairs.sum()} pairs that give {token}" if pairs.sum() > 1 else f"the pair that gives {token}"
        named.append((title, simplex.accuracy_of(pairs), TOKEN_INK[TOKENS.index(token)]))
    with new_figure(path, 4.9) as figure:
        axes = figure.subplots(2, 3)
        for panel, (title, accuracy, ink) in zip(axes.flat, named, strict=False):
            drawn = _triangle(panel, simplex, 100 * accuracy, vmin=0, vmax=100, cmap="viridis")
            panel.set_title(title, color=ink, pad=3)
            _name_corners(panel, [f"head {head}" for head in (1, 2, 3)], 7.5)
        for panel in axes.flat[len(named) :]:
            panel.set_axis_off()
        figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02).set_label("accuracy (%)")
    return path


def draw_inputs(path: Path, simplex: Simplex, facts: Facts) -> Path:
    """Each pair by itself: how likely its next token is, and within which line it is the most likely one."""
    side = len(TOKENS)
    with new_figure(path, 7.4) as figure:
        axes = figure.subplots(side, side)
        for at, panel in enumerate(axes.flat):
            drawn = _triangle(panel, simplex, simplex.probability[:, at], vmin=0, vmax=1, cmap="Blues")
            lead = simplex.lead[:, at]
            if lead.min() < 0 < lead.max():
                panel.tricontour(Triangulation(*_places(simplex)), lead, [0], colors="#b23a48", linewidths=1)
            token = int(facts.next_tokens[at])
            panel.set_title(f"{facts.names[at]} → {TOKENS[token]}", color=TOKEN_INK[token], pad=2, fontsize=9)
            _name_corners(panel, ["1", "2", "3"], 6.5)
        bar = figure.colorbar(drawn, ax=axes, shrink=0.5, pad=0.02)
        bar.set_label("probability of the pair's next token")
    return path


def _triangle(panel: Axes, simplex: Simplex, heights: NDArray[np.float64], **style: Any) -> Any:
    x, y = _places(simplex)
    drawn = panel.tripcolor(x, y, heights, shading="gouraud", rasterized=True, **style)
    outline = _CORNERS[[0, 1, 2, 0]]
    panel.plot(outline[:, 0], outline[:, 1], color="0.3", linewidth=0.7)
    panel.plot(*_CORNERS.mean(axis=0), marker="+", color="black", markersize=6, markeredgewidth=1.1)
    panel.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.14, 1.04))
    panel.set_axis_off()
    return drawn


def _places(simplex: Simplex) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at = simplex.weights / simplex.weights.sum(axis=1, keepdims=True) @ _CORNERS
    return at[:, 0], at[:, 1]


def _name_corners(panel: Axes, names: Sequence[str], size: float) -> None:
    for name, corner, (vertical, shift) in zip(
        names, _CORNERS, (("top", -0.03), ("top", -0.03), ("bottom", 0.02)), strict=True
    ):
        panel.text(corner[0], corner[1] + shift, name, ha="center", va=vertical, fontsize=size)
