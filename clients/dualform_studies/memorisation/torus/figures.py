"""Figures on the torus: the class map, the attention patterns, and each head alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from dualform_studies.memorisation.torus.maps import ClassMap
from dualform_studies.memorisation.torus.region_names import name_places
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.pages.frame import PALETTE, new_figure

TOKEN_INK = (*PALETTE[:4], PALETTE[5])
"""One colour a token, wherever it is predicted, or follows; sky blue would be taken for a faint blue."""
TOKEN_MARKS = ("o", "s", "^", "D", "v")
"""And one mark a token, wherever it follows."""
_ATTENTION = colormaps["RdBu_r"].resampled(20)
"""In steps of 5 %; every shade more would take from the marks' colours in a page's PNG."""
_DOT = 8.0
"""Degrees on either side of a pair that its dot takes."""


def draw_class_map(path: Path, drawn: ClassMap, facts: Facts, angles: NDArray[np.float64]) -> Path:
    """The whole network, and beside it the circle on which the words lie."""
    with new_figure(path, 4.3) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
        paint(left, drawn, angles)
        place_pairs(left, facts, angles, size=46)
        name_angles(left)
        beside = left.secondary_xaxis("top"), left.secondary_yaxis("right")
        for axis, direction in zip(beside, "xy", strict=True):
            axis.set(**{f"{direction}ticks": np.degrees(angles), f"{direction}ticklabels": TOKENS})
            axis.tick_params(length=2)
            axis.spines[:].set_visible(False)
        _circle(right, angles)
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_attention(path: Path, maps: NDArray[np.float64], facts: Facts, angles: NDArray[np.float64]) -> Path:
    """The attention pattern of each head: the probability to attend to the first token."""
    with new_figure(path, 2.95, shades=True) as figure:
        axes = figure.subplots(1, len(maps), sharey=True)
        for head, (panel, attention) in enumerate(zip(axes, maps, strict=True), start=1):
            image = panel.imshow(
                attention, origin="lower", extent=(0, 360, 0, 360), cmap=_ATTENTION, vmin=0, vmax=1, rasterized=True
            )
            places = (np.arange(len(attention)) + 0.5) * (360 / len(attention))
            if attention.min() < 0.5 < attention.max():
                panel.contour(places, places, attention, [0.5], colors="0.15", linewidths=0.8)
            place_pairs(panel, facts, angles, size=15)
            name_angles(panel, up=head == 1)
            panel.set_title(f"head {head}")
        bar = figure.colorbar(image, ax=axes, shrink=0.75, pad=0.01)
        bar.set_label("attention to the first token\n(probability)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_panels(
    path: Path, panels: Mapping[str, ClassMap], facts: Facts, angles: Mapping[str, NDArray[np.float64]], across: int
) -> Path:
    """Class maps by title, so many in a row. `angles` gives, by title, where the words of that network lie."""
    rows = -(-len(panels) // across)
    lines = 1 + max(title.count("\n") for title in panels)
    with new_figure(path, (7.5 / across + 0.16 * lines) * rows + 0.85 - 0.05 * rows) as figure:
        axes = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
        for at, (title, drawn) in enumerate(panels.items()):
            panel = axes.flat[at]
            paint(panel, drawn, angles[title], size=7.5)
            place_pairs(panel, facts, angles[title], size=14)
            name_angles(panel, up=at % across == 0, along=at // across == rows - 1)
            panel.set_title(title, fontsize=8.5)
        for panel in axes.flat[len(panels) :]:
            panel.set_axis_off()
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def paint(panel: Axes, drawn: ClassMap, angles: NDArray[np.float64] | None = None, size: float = 9) -> None:
    """The most likely token's colour, the fainter the less likely it is, and its letter where there is room.

    Letters keep off the pairs of words at these `angles` in radians, where any are given.
    """
    inks = np.array([to_rgb(ink) for ink in TOKEN_INK])[drawn.token]
    strength = np.clip((drawn.probability - 0.2) / 0.8, 0.12, 1)[..., None] * 0.8
    panel.imshow(1 - (1 - inks) * strength, origin="lower", extent=(0, 360, 0, 360), rasterized=True)
    cell = 360 / len(drawn.token)
    for token, row, column in name_places(drawn.token, _free(len(drawn.token), angles)):
        panel.text(
            (column + 0.5) * cell, (row + 0.5) * cell, TOKENS[token], ha="center", va="center_baseline",
            fontsize=size, fontweight="bold", path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def _free(points: int, angles: NDArray[np.float64] | None) -> NDArray[np.bool_]:
    """bool[G, G]: where no pair of words lies."""
    if angles is None:
        return np.ones((points, points), np.bool_)
    places = (np.arange(points) + 0.5) * (360 / points)
    near = np.abs(places[:, None] - np.degrees(angles)).min(axis=1) < _DOT
    return np.asarray(~(near[:, None] & near))


def place_pairs(panel: Axes, facts: Facts, angles: NDArray[np.float64], size: float) -> None:
    """A dot for each pair, in the colour and the shape of its next token."""
    mark_pairs(panel, facts, np.degrees(angles)[facts.pairs.numpy()], size)


def mark_pairs(panel: Axes, facts: Facts, places: NDArray[np.float64], size: float) -> None:
    """The same for pairs that lie elsewhere: `places` float64[P, 2]."""
    for token, (ink, mark) in enumerate(zip(TOKEN_INK, TOKEN_MARKS, strict=True)):
        own = places[facts.next_tokens.numpy() == token]
        for area, colour in ((1.9, "black"), (1.45, "white"), (0.75, ink)):
            panel.scatter(own[:, 0], own[:, 1], s=size * area, c=colour, marker=mark, zorder=3, linewidths=0)


def name_angles(panel: Axes, up: bool = True, along: bool = True) -> None:
    panel.set(xlim=(0, 360), ylim=(0, 360), aspect="equal")
    panel.set_xticks(range(0, 360, 90))
    panel.set_yticks(range(0, 360, 90))
    if along:
        panel.set_xlabel("first token's angle (°)")
    if up:
        panel.set_ylabel("second token's angle (°)")


def token_handles() -> list[Line2D]:
    return [
        Line2D([], [], marker=mark, linestyle="none", color=ink, label=f"next token {token}")
        for ink, mark, token in zip(TOKEN_INK, TOKEN_MARKS, TOKENS, strict=True)
    ]


def _circle(panel: Axes, angles: NDArray[np.float64]) -> None:
    around = np.linspace(0, 2 * np.pi, 200)
    panel.plot(np.sqrt(3) * np.cos(around), np.sqrt(3) * np.sin(around), color="0.75", linewidth=1)
    for token, angle in zip(TOKENS, angles, strict=True):
        direction = np.array([np.cos(angle), np.sin(angle)]) * np.sqrt(3)
        panel.plot(*direction, "o", color="0.2", markersize=5)
        panel.annotate(token, direction * 1.17, ha="center", va="center", fontsize=10)
    panel.set(xlim=(-2.25, 2.25), ylim=(-2.25, 2.25), aspect="equal")
    panel.set_xticks([-1.73, 0, 1.73], ["-√3", "0", "√3"])
    panel.set_yticks([-1.73, 0, 1.73], ["-√3", "0", "√3"])
    panel.set_xlabel("along (1, -1, 0) / √2")
    panel.set_ylabel("along (1, 1, -2) / √6")
    panel.set_title("the words on their circle")
