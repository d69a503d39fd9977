"""Falls of head 1: over the training, around the moment that a seed falls, and how curved the loss was before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dualform_studies.memorisation.boosting.falls import NEAR, HeadOne
from dualform_studies.pages.frame import MARKS, PALETTE, new_figure

_LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
_AROUND = 15
"""Percent of the training before and after a fall."""
_BOUNDED = ("SGD", "SGD, small")
"""The ways that follow curvatures up to a bound."""


def draw_falls(path: Path, found: Mapping[str, HeadOne]) -> Path:
    """Above all ways to train, as means over seeds, and how curved the loss grew in each seed; below the seeds that
    fall by SGD, moved so that they fall at 0."""
    with new_figure(path, 6.4) as figure:
        (means, curved), (accuracies, curvatures) = figure.subplots(2, 2)
        for at, one in enumerate(found.values()):
            accuracy = 100 * np.stack(one.curve.accuracy).mean(axis=1)
            means.plot(
                _percent(one.curve.steps, one), accuracy, color=PALETTE[at], linestyle=_LINES[at], linewidth=1.4,
                marker=("o", "s", "^", "D", "v")[at], markevery=(6 * at, 40), markersize=4, label=one.words,
            )  # fmt: skip
        means.set_xlabel("part of the training (%)")
        means.set_ylabel("accuracy of head 1 over 25 pairs (%)")
        means.set_title("mean over all seeds")
        means.legend(loc="lower right", fontsize=6.5)
        _draw_curved(curved, found)
        for at, name in enumerate(_BOUNDED):
            one = found[name]
            fell = np.flatnonzero(one.fell)
            accuracy, curvature = 100 * np.stack(one.curve.accuracy)[:, fell], one.curvature[:, fell]
            falls = np.array([fall for fall in one.falls() if fall is not None])
            _around(accuracies, _percent(one.curve.steps, one), accuracy, _percent(falls, one), at, one.words)
            assert one.bound is not None, "gradient descent has a bound"
            _around(curvatures, _percent(one.looked_at, one), curvature / one.bound, _percent(falls, one), at, "")
        accuracies.set_title("seeds that fall")
        accuracies.set_ylabel("accuracy of head 1 over 25 pairs (%)")
        curvatures.axhline(1, color="black", linewidth=0.8)
        curvatures.set_title("seeds that fall")
        curvatures.set_ylabel("greatest curvature of the loss,\nover what SGD follows")
        curvatures.set_ylim(bottom=0)
        for panel in (means, accuracies):
            panel.set_ylim(0, 104)
        for panel in (accuracies, curvatures):
            panel.set_xlabel("part of the training from the fall on (%)")
            panel.set_xlim(-_AROUND, _AROUND)
            panel.axvline(0, color="0.6", linewidth=0.7, linestyle=":")
        if accuracies.get_legend_handles_labels()[0]:
            accuracies.legend(loc="lower left", fontsize=6.5)
    return path


def _draw_curved(panel: Axes, found: Mapping[str, HeadOne]) -> None:
    """Each seed's greatest curvature, of those that fall up to the fall, and of the others up to the end."""
    names: list[str] = []
    for at, name in enumerate(_BOUNDED):
        one = found[name]
        assert one.bound is not None, "gradient descent has a bound"
        greatest = one.before_fall() / one.bound
        for chosen, words in ((one.fell, "fall"), (~one.fell, "do not")):
            spread = 0.5 * (np.arange(chosen.sum()) - (chosen.sum() - 1) / 2) / max(1, len(chosen))
            panel.plot(
                len(names) + spread, greatest[chosen], linestyle="none", marker=MARKS[at], color=PALETTE[at],
                markersize=4, markerfacecolor=PALETTE[at] if words == "fall" else "white",
            )  # fmt: skip
            names.append(f"{name}:\n{chosen.sum()} {words}")
    panel.axhline(1, color="black", linewidth=0.8)
    panel.axhline(NEAR, color="0.6", linewidth=0.7, linestyle=":")
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("greatest curvature of the loss,\nover what SGD follows")
    panel.set_title("each seed, up to its fall or its end")


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
    """Each seed thin, float64[K, M] at K moments, and their median bold, where any of them is known."""
    grid = np.linspace(-_AROUND, _AROUND, 61)
    moved = []
    for own, fall in zip(values.T, falls, strict=True):
        panel.plot(moments - fall, own, color=PALETTE[at], linewidth=0.5, alpha=0.35)
        moved.append(np.interp(grid, moments - fall, own, left=np.nan, right=np.nan))
    if moved:
        seen = np.isfinite(moved).any(axis=0)
        panel.plot(
            grid[seen], np.nanmedian(np.stack(moved)[:, seen], axis=0), color=PALETTE[at], linestyle=_LINES[at],
            linewidth=1.8, marker=MARKS[at], markevery=10, markersize=4, label=words,
        )  # fmt: skip
