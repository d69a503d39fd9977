"""Figures of one prompt: where in the training text, and when in the training, its attention goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.text.attention import Attention, Questions, best
from dualform_studies.text.findings import PASSAGES
from dualform_studies.text.ranks import Standard

_BINS = 240
"""Stretches of the training text that a figure tells apart."""
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_SMOOTHED = 25
"""Steps that a line over training time is averaged over, at most."""
_GAP = 0.033
"""Between labels of one row, as a share of the panel's width."""
_ROOM = 0.22
"""Above and below the sums, for the labels, as a share of what the sums span."""


def draw_attention(
    path: Path, asking: Questions, attention: Attention, prompt: int, unit: str, standard: Standard | None = None
) -> Path:
    """Sums by training token position along the text, the best of them and the paper's passages marked; beside it, the
    mean weight by step."""
    sums = attention.by_position.sums[asking.last[prompt]]
    with new_figure(path, 2.7) as figure:
        along, over = figure.subplots(1, 2, width_ratios=(2.6, 1))
        _draw_bands(along, attention.positions, sums)
        leading = best(sums, PASSAGES)
        ranks = [str(rank) for rank in range(1, len(leading) + 1)]
        along.scatter(
            attention.positions[leading], sums[leading], s=20, marker=MARKS[1], color=INK[1], zorder=4,
            label=f"the {len(leading)} best, by rank",
        )  # fmt: skip
        _label(along, attention.positions[leading], sums[leading], ranks, INK[1], above=True)
        if standard is not None:
            _draw_published(along, attention.positions, sums, standard)
        along.margins(x=0.01)
        along.set_xlabel(f"training token position ({unit}s from the beginning of the text)")
        along.set_ylabel("sum of absolute attention\nweights by position")
        along.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2, handlelength=1.4)
        _draw_over_time(over, attention, prompt)
        for panel in (along, over):
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.xaxis.set_major_locator(MaxNLocator(6 if panel is along else 3))
            panel.yaxis.set_major_locator(MaxNLocator(5))
    return path


def _draw_bands(panel: Axes, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
    """How the sums are distributed in each stretch of the text."""
    starts, levels = quantiles(sums, _BINS, _LEVELS)
    places = np.append(positions[starts], positions[-1])
    levels = np.concatenate([levels, levels[:, -1:]], axis=1)
    low, lower, middle, upper, high = levels
    panel.fill_between(places, low, high, step="post", color=INK[0], alpha=0.25, linewidth=0, label="5 to 95 % of all")
    panel.fill_between(places, lower, upper, step="post", color=INK[0], alpha=0.5, linewidth=0, label="25 to 75 %")
    panel.plot(places, middle, drawstyle="steps-post", color="black", linewidth=0.6, label="median")
    span = (sums.max() - sums.min()) or 1.0
    panel.set_ylim(sums.min() - _ROOM * span, sums.max() + _ROOM * span)


def _draw_published(panel: Axes, positions: NDArray[np.int64], sums: NDArray[np.float64], standard: Standard) -> None:
    """The paper's passages, where they were read, under their signs."""
    read = [
        (int(np.searchsorted(positions, place)), row.sign)
        for place, row in zip(standard.places, standard.table.rows, strict=True)
        if place is not None and np.isin(place, positions)
    ]
    if not read:
        return
    at = np.array([index for index, _ in read])
    panel.scatter(
        positions[at], sums[at], s=24, marker=MARKS[2], color=INK[2], edgecolor="black", linewidth=0.4, zorder=5,
        label=f"passages of the paper's Table {standard.table.number}",
    )  # fmt: skip
    _label(panel, positions[at], sums[at], [sign for _, sign in read], "black", above=False)


def _label(
    panel: Axes,
    places: NDArray[np.int64],
    heights: NDArray[np.float64],
    words: Sequence[str],
    colour: str,
    *,
    above: bool,
) -> None:
    """Names of points in a row above or below all sums, each joined to its point by a thin line."""
    panel.margins(x=0.01)
    low, high = panel.get_xlim()
    columns = spread((places - low) / (high - low), _GAP)
    for place, height, column, word in zip(places, heights, columns, words, strict=True):
        panel.annotate(
            word,
            (place, height),
            xytext=(column, 0.95 if above else 0.05),
            textcoords="axes fraction",
            ha="center",
            va="center",
            fontsize=7.5,
            color=colour,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 1, "shrinkB": 2},
        )


def _draw_over_time(panel: Axes, attention: Attention, prompt: int) -> None:
    weights = attention.by_step.sums[prompt] / attention.by_step.counts
    steps = np.array([step for (step,) in attention.by_step.groups])
    width = max(1, min(_SMOOTHED, len(steps) // 8))
    panel.plot(steps, weights, color=INK[3], alpha=0.5, linewidth=0.5, label="a step")
    smooth = np.convolve(weights, np.ones(width) / width, mode="valid")
    panel.plot(
        steps[width // 2 : width // 2 + len(smooth)], smooth, color="black", linewidth=1.1, label=f"mean of {width}"
    )
    panel.set_xlabel("training step")
    panel.set_ylabel("mean absolute attention\nweight of a step's tokens")
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.0, handlelength=1.2)


def quantiles(
    values: NDArray[np.float64], bins: int, levels: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First index of stretches of about equal length, `bins` of them or fewer, and float64[levels, stretches]: the
    quantiles of the values in each."""
    starts = np.unique(np.arange(bins) * len(values) // bins)
    parts = np.split(values, starts[1:])
    return starts, np.stack([np.quantile(part, levels) for part in parts], axis=1)


def spread(places: NDArray[np.floating[Any]], gap: float) -> NDArray[np.float64]:
    """float64[n]: where labels of float64[n] places between 0 and 1 go, so that they keep their order, lie between 0
    and 1, and no two are nearer than `gap`, or than there is room for."""
    order = np.argsort(places, kind="stable")
    gap = min(gap, 1 / max(1, len(places)))
    steps = gap * np.arange(len(places))
    # Each is pushed right by those before it, and all of them back from the right edge.
    pushed = np.maximum.accumulate(np.clip(places[order], gap / 2, None) - steps)
    pushed = np.minimum(pushed, 1 - gap / 2 - steps[-1:]) + steps
    found = np.empty(len(places))
    found[order] = pushed
    return found
