"""When the datapoints with the largest weights were trained on.

When the datapoints of greatest weight were trained on (the end of the paper's section 5.2).

Both rankings are signed: the weight, and the cosine, in which the length of keys has no say. Behind the first layer no
weight is negative, and signed is what the paper ranks by. Shapes: n queries, k datapoints of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform_studies.claims import Claim, judge, judged, verdict
from dualform_studies.figures import INK, MARKS
from dualform_studies.images.attention import Datapoints, best_slots, sampled_rows
from dualform_studies.images.query_figure import Query, query_figure
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import Report, in_fraction

HEADING = "When the best datapoints were trained on"
BEST = 500
"""Datapoints of each query, as in the paper."""
SAMPLED = 200
"""Test images over which a mean is taken."""
EVEN = 1 / 3
"""The share of a third of the training whose datapoints are as likely among the best as all others."""
_PREFERRED = 0.38
"""A third of the training is preferred where more of the best datapoints than this come from it."""
_LEAST, _GREATEST = EVEN / 2, 2 / 3
"""Datapoints are spread out while each third has at least half of its even share, in part while none has most."""


@dataclass(frozen=True)
class Period:
    """The part of a training whose datapoints are dated."""

    first: int
    """Its first update."""
    stop: int
    """The update after its last."""
    where: str
    """The mask that leaves its slots."""
    words: str = "the training"

    def thirds(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The third of the period that each step is in: 0, 1 or 2."""
        thirds: NDArray[np.int64] = 3 * (steps - self.first) // (self.stop - self.first)
        return thirds


@dataclass(frozen=True, eq=False)
class Dates:
    """The updates that the best datapoints of each query were part of."""

    steps: NDArray[np.int64]
    """int64[n, k]."""
    period: Period

    def third(self, number: int) -> NDArray[np.float64]:
        """float64[n]: the share of each query's datapoints in the first (0), middle (1) or last (2) third."""
        share: NDArray[np.float64] = (self.period.thirds(self.steps) == number).mean(axis=1)
        return share

    def excess(self) -> float:
        """How much more than a third of the best datapoints is early, a mean over the queries."""
        return float(self.third(0).mean()) - EVEN

    def distance(self) -> NDArray[np.float64]:
        """float64[n]: Kolmogorov's, of each query's dates from an even spread over the updates, from 0 to 1."""
        queries, best = self.steps.shape
        updates = self.period.stop - self.period.first
        cells = (self.steps - self.period.first) + updates * np.arange(queries)[:, None]
        by_update = np.bincount(cells.ravel(), minlength=queries * updates).reshape(queries, updates)
        even = np.arange(1, updates + 1) / updates
        distance: NDArray[np.float64] = np.abs(by_update.cumsum(axis=1) / best - even).max(axis=1)
        return distance


@dataclass(frozen=True, eq=False)
class LayerDates:
    layer: str
    shown: Dates
    """Of the one query that is drawn, by weight."""
    product: Dates
    """Of the sampled test images, by weight."""
    cosine: Dates
    """Of the same, by cosine."""
    norms: NDArray[np.float64]
    """float64[steps of the period]: the mean length of the keys of each update's datapoints; nan without any."""
    longest: NDArray[np.float64]
    """float64[steps of the period]: the greatest."""

    @property
    def cause(self) -> str:
        """What makes the best datapoints early; "none" where they are not.

        "length" where the keys of the first third are longer than those of the last, and cosine removes at least half
        of the excess over an even third; "part" where it removes as much of keys that are no longer, or less of longer
        ones; else "other".
        """
        if self.product.third(0).mean() <= _PREFERRED:
            return "none"
        removed = 1 - self.cosine.excess() / self.product.excess()
        first, _, last = in_thirds(self.norms, self.product.period)
        longer = first is not None and last is not None and first > last
        if longer and removed >= 1 / 2:
            return "length"
        return "part" if removed >= 1 / 2 or (longer and removed > 0) else "other"


def ask_dates(
    memory: Answers,
    layers: Sequence[str],
    checkpoint: Checkpoint,
    shown: int,
    period: Period,
    datapoints: Datapoints,
    norms: Mapping[str, NDArray[np.float64]],
    seed: int = 0,
) -> list[LayerDates]:
    """The best datapoints of a period, of the test image `shown` and of others drawn by chance, layer by layer.

    `norms` is float64[T] by layer, the length of each slot's key.
    """
    rows = sampled_rows(len(checkpoint.dataset.test), SAMPLED, seed)
    within = (datapoints.steps >= period.first) & (datapoints.steps < period.stop)
    found = []
    for layer in layers:

        def dated(rows: NDArray[np.int64], score: str, layer: str = layer) -> Dates:
            best = best_slots(memory, layer, checkpoint.query_set, rows, BEST, period.where, score)
            return Dates(datapoints.steps[best], period)

        lengths = by_step(norms[layer][within], datapoints.steps[within], period)
        alone = dated(np.array([shown]), "dot")
        found.append(LayerDates(layer, alone, dated(rows, "dot"), dated(rows, "cosine"), *lengths))
    return found


def by_step(
    values: NDArray[np.float64], steps: NDArray[np.int64], period: Period
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[steps of the period], twice: mean and maximum of the values of each step; nan of a step without any."""
    begun, count = steps - period.first, period.stop - period.first
    known = np.bincount(begun, minlength=count)
    greatest = np.full(count, -np.inf)
    np.maximum.at(greatest, begun, values)
    greatest[known == 0] = np.nan
    with np.errstate(invalid="ignore"):
        return np.bincount(begun, values, count) / known, greatest


def in_thirds(lengths: NDArray[np.float64], period: Period) -> list[float | None]:
    """The mean over the steps of each third of the period; None without any."""
    thirds = period.thirds(np.arange(period.first, period.stop))
    parts = [lengths[(thirds == number) & ~np.isnan(lengths)] for number in range(3)]
    return [float(part.mean()) if len(part) else None for part in parts]


def date_claims(layers: Sequence[LayerDates]) -> list[Claim]:
    """That recent datapoints are not preferred, and that datapoints are spread out, behind the first layer."""
    behind = layers[1:]
    thirds = {one.layer: [float(one.product.third(number).mean()) for number in range(3)] for one in behind}
    distances = {one.layer: f"{one.product.distance().mean():.3f}" for one in behind}
    of = f"of the {BEST} best of {len(behind[0].product.steps)} test images"
    names = " and ".join(thirds)
    spread = [2 if min(shares) >= _LEAST else int(max(shares) <= _GREATEST) for shares in thirds.values()]
    return [
        judged(
            "single.recent",
            verdict(sum(shares[2] <= _PREFERRED for shares in thirds.values()), len(behind), 1),
            f"{_listed({layer: _percent([shares[2]]) for layer, shares in thirds.items()})} {of} come from the last "
            "third of the updates",
            names=names,
            preferred=_percent([_PREFERRED]),
            even=_percent([EVEN]),
        ),
        judge(
            "single.spread",
            min(spread),
            f"{_listed({layer: _percent(shares) for layer, shares in thirds.items()})} {of} come from the first, "
            f"middle and last third of the updates; Kolmogorov distance to an even spread {_listed(distances)}",
            names=names,
            best=BEST,
            least=in_fraction(_LEAST),
            greatest=in_fraction(_GREATEST),
        ),
    ]


def _percent(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"


def _listed(said: Mapping[str, str]) -> str:
    return ", ".join(f"{words} at {layer}" for layer, words in said.items())


def dates_report(layers: Sequence[LayerDates]) -> Report:
    """By layer, over the sampled test images; each share of a third is a mean, with its deviation."""
    return {
        one.layer: {
            "queries": len(one.product.steps),
            "datapoints": one.product.steps.shape[1],
            "period": one.product.period.words,
            "shown": [float(one.shown.third(number).mean()) for number in range(3)],
            "product": _thirds(one.product),
            "cosine": _thirds(one.cosine),
            "norms": in_thirds(one.norms, one.product.period),
            "longest": in_thirds(one.longest, one.product.period),
            "cause": one.cause,
        }
        for one in layers
    }


def _thirds(dates: Dates) -> Report:
    shares = [dates.third(number) for number in range(3)]
    return {
        "mean": [float(share.mean()) for share in shares],
        "deviation": [float(share.std()) for share in shares],
        "distance": float(dates.distance().mean()),
    }


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
