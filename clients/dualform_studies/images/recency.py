"""When the datapoints of greatest attention weight were trained on (the end of the paper's section 5.2).

Shapes: n queries, k datapoints of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import ProbeRows
from dualform_studies.images.query_figure import Query, query_figure
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK
from dualform_studies.pages.items import Table

_BINS = 30


@dataclass(frozen=True, eq=False)
class Recency:
    """The steps of one layer's best datapoints."""

    steps: NDArray[np.int64]
    """int64[n, k], or fewer than k where there are not as many."""
    total: int
    """Updates in all: a step is from 0 to total - 1."""

    @property
    def last_third(self) -> NDArray[np.float64]:
        """float64[n]: of each query, the share of datapoints from the last third of the training; 1/3 were it even."""
        late: NDArray[np.float64] = (3 * self.steps >= 2 * self.total).mean(axis=1)
        return late

    @property
    def unevenness(self) -> NDArray[np.float64]:
        """float64[n]: Kolmogorov's distance between each query's steps and an even spread, from 0 to 1."""
        ordered = np.sort(self.steps, axis=1)
        count = ordered.shape[1]
        even_below, even_above = ordered / self.total, (ordered + 1) / self.total
        below, above = np.arange(count) / count, (np.arange(count) + 1) / count
        # Steps are whole: the even spread rises in stairs as well, and is compared before and after each.
        distances = np.maximum(above - even_above, even_below - below)
        furthest: NDArray[np.float64] = distances.max(axis=1)
        return furthest

    @property
    def critical(self) -> float:
        """A distance that an even spread passes once in a hundred times (Kolmogorov's limit for many datapoints)."""
        return float(np.sqrt(-np.log(0.01 / 2) / 2 / self.steps.shape[1]))


def ask_recency(
    memory: Answers, layers: Sequence[str], queries: ProbeRows, total: int, k: int = 500
) -> dict[str, Recency]:
    """By layer: the steps of the k datapoints of greatest weight for each query, among the first `total` steps."""
    found = {}
    for layer in layers:
        hits = memory.topk(layer, queries, k=k, where=f"step < {total}", score="abs")
        steps = np.asarray(memory.slots(hits)["step"], dtype=np.int64)
        found[layer] = Recency(steps.reshape(len(hits), -1), total)
    return found


def recency_report(recency: Mapping[str, Recency]) -> Report:
    """By layer, over all queries."""
    return {
        layer: {
            "queries": len(one.steps),
            "datapoints": one.steps.shape[1],
            "last_third": float(one.last_third.mean()),
            "last_third_deviation": float(one.last_third.std()),
            "unevenness": float(one.unevenness.mean()),
            "critical": one.critical,
            "uneven": float((one.unevenness > one.critical).mean()),
        }
        for layer, one in recency.items()
    }


def recency_table(report: Report) -> Table:
    rows = [
        (
            layer,
            f"{100 * one['last_third']:.1f} ± {100 * one['last_third_deviation']:.1f}",
            f"{one['unevenness']:.3f}",
            f"{one['critical']:.3f}",
            f"{100 * one['uneven']:.0f}",
        )
        for layer, one in report.items()
    ]
    first = next(iter(report.values()))
    caption = (
        f"The {first['datapoints']} datapoints of greatest attention weight of each of {first['queries']} test images: "
        "how many of them come from the last third of the training (33.3 % were they spread evenly; mean and deviation "
        "over the images), and Kolmogorov's distance from an even spread, beside the distance that chance passes once "
        "in a hundred times."
    )
    columns = ("layer", "from the last third (%)", "mean distance", "by chance 1 %", "images beyond it (%)")
    return Table("recency", caption, columns, rows)


def draw_recency(path: Path, recency: Mapping[str, Recency], query: Query) -> Path:
    """The steps of the first query, which the figure is about; and of all of them."""
    with query_figure(
        path, query, "When the datapoints of greatest weight were trained on", 1.5 * len(recency), classes=False
    ) as figure:
        axes = list(figure.subplots(len(recency), 1, sharex=True, squeeze=False)[:, 0])
        for panel, (layer, one) in zip(axes, recency.items(), strict=True):
            edges = np.linspace(0, one.total, min(_BINS, one.total) + 1)
            queries, count = one.steps.shape
            own, _ = np.histogram(one.steps[0], edges)
            every, _ = np.histogram(one.steps, edges)
            panel.stairs(own, edges, fill=True, color=INK[0], alpha=0.55, label="the query")
            panel.stairs(every / queries, edges, color=INK[1], linewidth=1.4, label=f"mean of {queries} test images")
            panel.axhline(count / (len(edges) - 1), color="0.35", linestyle="--", linewidth=0.9, label="spread evenly")
            panel.set_title(layer, loc="left", pad=3)
            panel.set_ylabel("datapoints")
            panel.set_xlim(0, one.total)
        axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.1)
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes[-1].set_xlabel(f"update at which they were trained on; of each query the {count} of greatest weight")
        figure.align_ylabels(axes)
    return path
