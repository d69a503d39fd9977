"""The level line of attention patterns, moving with their parameters."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from dualform_studies.memorisation.pattern.level_lines import one_dimensional, through_heads
from dualform_studies.memorisation.pattern.polynomial import evaluate
from dualform_studies.memorisation.torus.figures import name_angles
from dualform_studies.pages.animation import save_animation
from dualform_studies.pages.frame import PALETTE, new_figure

_FRAMES = 24
_MILLISECONDS = 180
_POINTS = 181
_PIXELS_AN_INCH = 100
_SIDES = {"second": PALETTE[0], "first": PALETTE[6]}
"""By the token that gets more attention: dark and light, so that they stay apart without their colours."""


def draw_level_lines(path: Path, coefficients: NDArray[np.float64], frames: int = _FRAMES) -> Path:
    """Left a head of dimension 3 on the circle through the network's heads, float64[3, 11]; right one of dimension 1.

    The PNG moves; the SVG is the first frame.
    """
    circle = through_heads(coefficients)
    along = np.linspace(0, 2 * np.pi, _POINTS)
    first, second = np.meshgrid(along, along)
    taken: list[Image.Image] = []
    with new_figure(path, 4.0) as figure:
        left, dial, right = figure.subplots(1, 3, width_ratios=(1, 0.4, 1))
        left.set_title("a head of dimension 3: all nine parameters")
        right.set_title("a head of dimension 1: three of five")
        for panel in (left, right):
            name_angles(panel, up=panel is left)
        right.set_yticklabels([])
        _draw_dial(dial, [circle.angle_of(head / np.linalg.norm(head)) for head in coefficients])
        handles = [
            Patch(facecolor=ink, edgecolor="black", label=f"more attention to the {token} token")
            for token, ink in _SIDES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        # The last is the first again: what the SVG will show.
        for frame in [*range(frames), 0]:
            turn = 2 * np.pi * frame / frames
            drawn = [
                *_draw(left, along, evaluate(circle.at(turn), first, second)),
                *_draw(right, along, one_dimensional(turn)(first, second)),
                *dial.plot(*_hand(turn), color="black", linewidth=1.6, marker="o", markevery=[1], markersize=4),
            ]
            if len(taken) < frames:
                taken.append(_pixels(figure))
                # The first frame has laid out the figure for all of them.
                figure.set_layout_engine("none")
                for artist in drawn:
                    artist.remove()
    return save_animation(path, taken, _MILLISECONDS)


def _draw(panel: Axes, along: NDArray[np.float64], raw: NDArray[np.float64]) -> list[Any]:
    degrees = np.degrees(along)
    most = float(np.abs(raw).max())
    # Colours between the two would make frames several times as large.
    style: Any = {"antialiased": False}
    filled = panel.contourf(degrees, degrees, raw, [-2 * most, 0, 2 * most], colors=list(_SIDES.values()), **style)
    return [filled, panel.contour(degrees, degrees, raw, [0], colors="black", linewidths=1.4, **style)]


def _draw_dial(panel: Axes, stops: list[float]) -> None:
    """How far round both are, and where the left one is the pattern of one of the network's heads."""
    around = np.linspace(0, 2 * np.pi, 100)
    panel.plot(np.sin(around), np.cos(around), color="0.6", linewidth=0.8)
    for head, stop in enumerate(stops, start=1):
        panel.plot(np.sin(stop), np.cos(stop), "o", color="0.45", markersize=4)
        panel.text(2.1 * np.sin(stop), 1.4 * np.cos(stop), f"head {head}", ha="center", va="center", fontsize=7.5)
    panel.set_title("the way round", fontsize=8)
    panel.set(xlim=(-2.7, 2.7), ylim=(-1.8, 1.8), aspect="equal")
    panel.set_axis_off()


def _hand(turn: float) -> tuple[list[float], list[float]]:
    return [0.0, float(np.sin(turn))], [0.0, float(np.cos(turn))]


def _pixels(figure: Figure) -> Image.Image:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_PIXELS_AN_INCH)
    return Image.open(drawn).convert("RGB")
