"""Boosted training beside free training: accuracy over the updates, and what each seed ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from dualform_studies.memorisation.boosting.ways import HEADS_WORDS, WAYS, HeadTraining, boundaries
from dualform_studies.memorisation.transformer.ensemble import Curve, Ensemble
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.frame import INK, MARKS, new_figure

_LINES: Any = {"free": "-", "shared": (0, (5, 1.5)), "frozen": (0, (1, 1))}
_KINDS = tuple(_LINES)


def draw_ways(path: Path, trained: Mapping[str, Ensemble], recipe: Recipe) -> Path:
    """By optimizer, the median over seeds with its quartiles; and every seed at its end."""
    with new_figure(path, 3.6) as figure:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1), sharey=True)
        for panel, optimizer in ((left, "SGD"), (middle, "Adam")):
            for way, ensemble in _of(trained, optimizer):
                _band(panel, ensemble.curve, way)
            for head, step in enumerate([0, *boundaries(recipe)[:-1]], start=1):
                panel.axvline(step, color="0.6", linewidth=0.7, linestyle=":")
                panel.text(step, 1.01, f"head {head}", transform=panel.get_xaxis_transform(), fontsize=7)
            panel.set_title(f"by {optimizer}", pad=14)
            panel.set_xlabel("updates (above: the head\nthat boosted training is at)")
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        _ends(right, trained)
        left.set_ylabel("accuracy over the 25 pairs (%)")
        left.set_ylim(0, 104)
        handles = [
            Line2D([], [], color=INK[at], linestyle=_LINES[kind], marker=MARKS[at], markersize=4, label=words)
            for at, (kind, words) in enumerate(HEADS_WORDS.items())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return path


def _of(trained: Mapping[str, Ensemble], optimizer: str) -> list[tuple[HeadTraining, Ensemble]]:
    return [(way, trained[name]) for name, way in WAYS.items() if way.optimizer == optimizer]


def _band(panel: Axes, curve: Curve, way: HeadTraining) -> None:
    at = _KINDS.index(way.heads)
    low, middle, high = quartiles(curve.accuracy)
    panel.fill_between(curve.steps, low, high, color=INK[at], alpha=0.16, linewidth=0)
    panel.plot(
        curve.steps, middle, color=INK[at], linestyle=_LINES[way.heads], linewidth=1.5,
        marker=MARKS[at], markevery=(8 * at, 40), markersize=4,
    )  # fmt: skip


def _ends(panel: Axes, trained: Mapping[str, Ensemble]) -> None:
    for place, (name, way) in enumerate(WAYS.items()):
        at = _KINDS.index(way.heads)
        accuracy = trained[name].curve.accuracy[-1]
        ends, counts = np.unique(np.round(100 * accuracy), return_counts=True)
        for end, count in zip(ends, counts, strict=True):
            spread = min(0.09, 0.8 / count)
            panel.scatter(
                place + spread * (np.arange(count) - (count - 1) / 2), np.full(count, end),
                s=11, marker=MARKS[at], color=INK[at], alpha=0.75, linewidths=0,
            )  # fmt: skip
        panel.hlines(100 * np.median(accuracy), place - 0.45, place + 0.45, color="black", linewidth=1.2)
    panel.set_xticks([1, 4], ["SGD", "Adam"])
    panel.axvline(2.5, color="0.8", linewidth=0.7)
    panel.tick_params(axis="x", length=0)
    panel.set_title("each seed at the end,\nand the median", pad=3)


def quartiles(accuracy: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """float64[3, K]: first quartile, median and third over the networks, in percent, of K times float64[M]."""
    return np.asarray(100 * np.percentile(np.stack(accuracy), (25, 50, 75), axis=1))
