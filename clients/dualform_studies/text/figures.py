"""Figures of one prompt: where in the training text, and when in the training, its attention goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from dualform_studies.pages.frame import INK, new_figure
from dualform_studies.text.attention import Attention, Questions, best

_BINS = 400
"""Stretches of the training text that a figure tells apart."""
_SMOOTHED = 25
"""Steps that a line over training time is averaged over, at most."""


def draw_attention(
    path: Path, asking: Questions, attention: Attention, prompt: int, unit: str, passages: int = 5
) -> Path:
    """Sums by training token position along the text, the best of them marked; beside it, the mean weight by step."""
    sums = attention.by_position.sums[asking.rows[prompt].stop - 1]
    positions = attention.positions
    with new_figure(path, 2.35) as figure:
        along, over = figure.subplots(1, 2, width_ratios=(2.6, 1))
        starts, mean, low, high = binned(sums, _BINS)
        places = positions[starts]
        along.fill_between(
            places, low, high, step="post", color=INK[0], alpha=0.28, linewidth=0, label="least to greatest"
        )
        along.plot(places, mean, color=INK[0], linewidth=0.8, label="mean")
        leading = best(sums, passages)
        along.scatter(positions[leading], sums[leading], s=16, color=INK[1], zorder=3, label="best")
        for place, ranks in _together(positions[leading], (positions[-1] - positions[0]) // 40):
            highest = sums[leading[ranks[0] - 1]]
            words = ", ".join(map(str, ranks))
            along.annotate(words, (place, highest), (4, 2), textcoords="offset points", fontsize=7.5)
        along.axhline(0, color="0.6", linewidth=0.6)
        along.margins(x=0.01, y=0.14)
        along.set_xlabel(f"training token position ({unit}s from the beginning)")
        along.set_ylabel("summed attention weight\n" r"$\Sigma\,\alpha$ by position (no unit)")
        along.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2, handlelength=1.4)
        weights = attention.by_step.sums[prompt] / attention.by_step.counts
        steps = np.array([step for (step,) in attention.by_step.groups])
        width = max(1, min(_SMOOTHED, len(steps) // 8))
        over.plot(steps, weights, color=INK[2], alpha=0.3, linewidth=0.5)
        smooth = np.convolve(weights, np.ones(width) / width, mode="valid")
        over.plot(steps[width // 2 : width // 2 + len(smooth)], smooth, color=INK[2], linewidth=1.1)
        over.set_xlabel("training step")
        over.set_ylabel("mean attention weight\nof a step's tokens (no unit)")
        for panel in (along, over):
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.xaxis.set_major_locator(MaxNLocator(6 if panel is along else 3))
            panel.yaxis.set_major_locator(MaxNLocator(5))
    return path


def _together(places: NDArray[np.int64], near: int) -> list[tuple[int, list[int]]]:
    """Ranks of places, those that lie near an earlier one under that one's place: their labels would overlap."""
    found: list[tuple[int, list[int]]] = []
    for rank, place in enumerate(places.tolist(), start=1):
        beside = next((ranks for other, ranks in found if abs(place - other) <= near), None)
        if beside is None:
            found.append((place, [rank]))
        else:
            beside.append(rank)
    return found


def binned(
    values: NDArray[np.float64], bins: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """First index, mean, least and greatest value of stretches of about equal length, `bins` of them or fewer."""
    starts = np.unique(np.arange(bins) * len(values) // bins)
    lengths = np.diff(np.append(starts, len(values)))
    mean = np.add.reduceat(values, starts) / lengths
    return starts, mean, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
