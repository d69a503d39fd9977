"""Falls of head 1: over the training, and around the moment that a seed falls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dualform_studies.memorisation.falls import HeadOne
from dualform_studies.pages.frame import MARKS, PALETTE, new_figure

_LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
_AROUND = 15
"""Percent of the training before and after a fall."""


def draw_falls(path: Path, found: Mapping[str, HeadOne]) -> Path:
    """Left all ways to train, as means over seeds; then the seeds that fall by SGD, moved so that they fall at 0."""
    with new_figure(path, 3.5) as figure:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        for at, one in enumerate(found.values()):
            accuracy = 100 * np.stack(one.curve.accuracy).mean(axis=1)
            left.plot(
                _percent(one.curve.steps, one), accuracy, color=PALETTE[at], linestyle=_LINES[at], linewidth=1.4,
                marker=("o", "s", "^", "D", "v")[at], markevery=(6 * at, 40), markersize=4, label=one.words,
            )  # fmt: skip
        left.set_xlabel("part of the training (%)")
        left.set_ylabel("accuracy of head 1 over 25 pairs (%)")
        left.set_ylim(0, 104)
        left.set_title("mean over all seeds")
        left.legend(loc="lower right", fontsize=6.5)
        for at, name in enumerate(("SGD", "SGD, small")):
            one = found[name]
            fell = np.flatnonzero(one.fell)
            accuracy, curvature = 100 * np.stack(one.curve.accuracy)[:, fell], one.curvature[:, fell]
            falls = np.array([fall for fall in one.falls() if fall is not None])
            _around(middle, _percent(one.curve.steps, one), accuracy, _percent(falls, one), at, one.words)
            assert one.bound is not None, "gradient descent has a bound"
            _around(right, _percent(one.looked_at, one), curvature / one.bound, _percent(falls, one), at, "")
        middle.set_title("seeds that fall: accuracy (%)")
        middle.set_ylim(0, 104)
        right.axhline(1, color="black", linewidth=0.8)
        right.set_title("greatest curvature of their\nloss, over what SGD follows")
        right.set_ylim(0, 2)
        for panel in (middle, right):
            panel.set_xlabel("part of the training\nfrom the fall on (%)")
            panel.set_xlim(-_AROUND, _AROUND)
            panel.axvline(0, color="0.6", linewidth=0.7, linestyle=":")
        if middle.get_legend_handles_labels()[0]:
            middle.legend(loc="lower left", fontsize=6)
    return path


def _percent(steps: object, one: HeadOne) -> NDArray[np.float64]:
    return np.asarray(100 * np.asarray(steps, dtype=np.float64) / one.steps)


def _around(
    panel: Axes,
    moments: NDArray[np.float64],
    values: NDArray[np.float64],
    falls: NDArray[np.float64],
    at: int,
    words: str,
) -> None:
    """Each seed thin, float64[K, M] at K moments, and their median bold."""
    grid = np.linspace(-_AROUND, _AROUND, 61)
    moved = []
    for own, fall in zip(values.T, falls, strict=True):
        panel.plot(moments - fall, own, color=PALETTE[at], linewidth=0.5, alpha=0.35)
        moved.append(np.interp(grid, moments - fall, own, left=np.nan, right=np.nan))
    if moved:
        panel.plot(
            grid, np.nanmedian(np.stack(moved), axis=0), color=PALETTE[at], linestyle=_LINES[at], linewidth=1.8,
            marker=MARKS[at], markevery=10, markersize=4, label=words,
        )  # fmt: skip
