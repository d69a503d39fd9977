"""Dates of the best datapoints, drawn: histograms over the updates, and the length of keys beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform_studies.images.claims.dates import Dates, LayerDates
from dualform_studies.images.query_figure import Query, query_figure
from dualform_studies.pages.frame import INK, MARKS

_BINS = 30


def draw_dates(path: Path, layers: Sequence[LayerDates], query: Query) -> Path:
    """Of each layer the dates of the query's best and of those of other test images; the mean length of keys beside."""
    period = layers[0].product.period
    edges = np.linspace(period.first, period.stop, min(_BINS, period.stop - period.first) + 1)
    queries, best = layers[0].product.steps.shape
    with query_figure(
        path, query, "When the datapoints of greatest weight were trained on", 1.5 * len(layers), classes=False
    ) as figure:
        grid = figure.subplots(len(layers), 2, sharex=True, squeeze=False, width_ratios=(2.4, 1))
        for (left, right), one in zip(grid, layers, strict=True):
            left.stairs(_mean(one.shown, edges), edges, fill=True, color="0.78", label="the query, by weight")
            _draw_mean(left, one.product, edges, 0, f"{queries} test images, by weight")
            _draw_mean(left, one.cosine, edges, 1, "the same, by cosine")
            left.axhline(best / (len(edges) - 1), color="0.35", linestyle="--", linewidth=0.9, label="spread evenly")
            left.set_title(one.layer, loc="left", pad=3)
            left.set_ylabel("datapoints")
            left.set_xlim(period.first, period.stop)
            _draw_lengths(right, one.longest, edges, "--", "longest of a batch")
            _draw_lengths(right, one.norms, edges, "-", "mean")
            right.set_ylim(0, 1.15 * right.get_ylim()[1])
            right.yaxis.set_major_locator(MaxNLocator(3))
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        for panel in grid[-1]:
            panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        grid[-1, 0].set_xlabel(f"update at which they were trained on; of each query the {best} best")
        grid[-1, 1].set_xlabel("update")
        grid[0, 1].set_title("length of keys", loc="left", pad=3)
        grid[0, 1].legend(loc="lower left")
        figure.align_ylabels(list(grid[:, 0]))
    return path


def _draw_mean(panel: Axes, dates: Dates, edges: NDArray[np.float64], at: int, words: str) -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    style, mark = ("-", "--")[at], MARKS[at]
    panel.plot(middles, _mean(dates, edges), style, color=INK[at], marker=mark, markersize=2.6, label=words)


def _mean(dates: Dates, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[bins]: datapoints of a query, a mean over the queries."""
    counts, _ = np.histogram(dates.steps, edges)
    mean: NDArray[np.float64] = counts / len(dates.steps)
    return mean


def _draw_lengths(
    panel: Axes, lengths: NDArray[np.float64], edges: NDArray[np.float64], style: str, words: str
) -> None:
    """Means over the steps of each bin."""
    known = ~np.isnan(lengths)
    steps = (edges[0] + np.arange(len(lengths)))[known]
    totals, _ = np.histogram(steps, edges, weights=lengths[known])
    counts, _ = np.histogram(steps, edges)
    with np.errstate(invalid="ignore"):
        panel.stairs(totals / counts, edges, color=INK[2], linewidth=1.4, linestyle=style, baseline=None, label=words)
