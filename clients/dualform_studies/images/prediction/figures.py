"""Figures in the manner of the paper's, drawn from what a memory answered; every figure is one PNG of page width.

A figure shows one query; its panels are the layers, its horizontal axis the training classes of each dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.prediction.class_panels import class_panels, ink_of, named_group
from dualform_studies.images.prediction.spotlight import LayerSpotlight
from dualform_studies.images.query_figure import Query, query_figure, show_picture
from dualform_studies.pages.frame import HATCHES, INK, new_figure
from dualform_studies.pages.words import listed

_PANEL = 1.65
"""Inches: the height of one layer's panel."""
_THOUSAND = 1000
"""From here on, sums are written with k and M."""
_POINTS = 100
"""Ranks of a class at which its line has a point, at most: there are no more pixels across a class."""
_DOTTED = (1, 10, 100)
"""Ranks at which it has a dot."""
_DIGITS = 4
"""Digits of the greatest attention weight shown; the others have as many decimals."""


def draw_distribution(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """Attention weights over the training datapoints: of each class the greatest, by rank, on a logarithmic scale.

    `paper` names the paper's figure that this one stands beside, as "Figure 4"; so in the figures below.
    """
    title = f"Attention weights over training datapoints ({paper} of the paper)"
    deepest = max(len(best) for layer in layers for best in layer.best)
    findings = [f"the greatest weight goes to {named_group(_greatest(layer), datasets)}" for layer in layers]
    with query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        panels = class_panels(figure, layers, findings, query, datasets)
        for panel, layer in zip(panels, layers, strict=True):
            for at, ((dataset, _), best) in enumerate(zip(layer.groups, layer.best, strict=True)):
                _draw_ranked(panel, at, best, deepest, ink_of(dataset, datasets))
            panel.set_ylabel("attention weight\n" r"$|\alpha|$")
        dotted = listed([str(rank) for rank in _DOTTED if rank <= deepest])
        panels[-1].set_xlabel(
            f"training class; within each, its {deepest} datapoints of greatest weight from the left,\n"
            f"ranks on a logarithmic scale (dots: ranks {dotted})"
        )
        figure.align_ylabels(panels)
    return path


def _greatest(layer: LayerSpotlight) -> tuple[str, int]:
    """The group of the greatest single weight."""
    return layer.groups[int(np.argmax([best[0] if len(best) else -np.inf for best in layer.best]))]


def _draw_ranked(panel: Axes, at: int, best: NDArray[np.float32], deepest: int, ink: str) -> None:
    """The weights of class number `at` from its left edge to its right."""
    if not len(best):
        return
    ranks = np.unique(np.geomspace(1, len(best), _POINTS).round().astype(np.int64))
    dots = np.array([rank for rank in _DOTTED if rank <= len(best)])
    for shown, style in ((ranks, "-"), (dots, "o")):
        places = at + 0.08 + 0.84 * np.log(shown) / np.log(max(deepest, 2))
        panel.plot(places, best[shown - 1], style, color=ink, linewidth=1.4, markersize=2.8)


def draw_sums(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """All attention weights of each class summed."""
    title = f"Attention weights summed over each training class ({paper} of the paper)"
    return _draw_sums(path, layers, query, datasets, title, "summed weights\n" r"$\Sigma\,|\alpha|$")


def draw_weighted_sums(path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset]) -> Path:
    """The same for attention weights times the norm of the error that each brings (error_norm.py)."""
    title = "Attention weights times error norms summed over each training class"
    return _draw_sums(path, layers, query, datasets, title, "weighted sums\n" r"$\Sigma\,|\alpha|\,\Vert e\Vert$")


def _draw_sums(
    path: Path,
    layers: Sequence[LayerSpotlight],
    query: Query,
    datasets: Sequence[Dataset],
    title: str,
    label: str,
) -> Path:
    findings = [f"the greatest sum goes to {named_group(layer.strongest, datasets)}" for layer in layers]
    with query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        panels = class_panels(figure, layers, findings, query, datasets)
        for panel, layer in zip(panels, layers, strict=True):
            colours = [ink_of(dataset, datasets) for dataset, _ in layer.groups]
            panel.bar(np.arange(len(layer.groups)) + 0.5, layer.sums, width=0.72, color=colours)
            if max(layer.sums) >= _THOUSAND:
                panel.yaxis.set_major_formatter(EngFormatter(sep=" "))
            panel.set_ylabel(label)
        panels[-1].set_xlabel("training class")
        figure.align_ylabels(panels)
    return path


def draw_top_images(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """The training images attended to most, layer by layer, in columns by rank."""
    sources = {dataset.name: dataset for dataset in datasets}
    most = max(len(layer.top) for layer in layers)
    decimals = _decimals(max(hit["score"] for layer in layers for hit in layer.top))
    title = f"Training images attended to most, from the left ({paper} of the paper)"
    with query_figure(path, query, title, 1.78 * len(layers), classes=False) as figure:
        grid = figure.subplots(len(layers), most, squeeze=False)
        for panels, layer in zip(grid, layers, strict=True):
            panels[0].set_ylabel(layer.layer)
            for panel in panels[len(layer.top) :]:
                panel.set_axis_off()
            for rank, (panel, hit) in enumerate(zip(panels, layer.top, strict=False), start=1):
                source = sources[hit["dataset"]]
                caption = f"{rank}. {source.name}: {source.label_names[hit['label']]}\n"
                caption += f"weight {hit['score']:,.{decimals}f}, step {hit['step']:,}"
                show_picture(panel, source.picture(source.train.pixels[hit["sample"]]), caption)
    return path


def _decimals(greatest: float) -> int:
    """Decimals with which the greatest weight has _DIGITS digits, and none where it has more before the point."""
    return max(0, _DIGITS - 1 - floor(log10(greatest))) if greatest > 0 else 0


def draw_accuracies(path: Path, accuracy: Mapping[str, Mapping[str, float]], moments: Mapping[str, str]) -> Path:
    """Test accuracy of each dataset at each moment; `moments` gives the words under the bars."""
    with new_figure(path, 2.7, "Test accuracy of the network, by dataset and moment") as figure:
        panel = figure.subplots()
        width = 0.8 / len(accuracy)
        for at, (dataset, by_moment) in enumerate(accuracy.items()):
            places = np.arange(len(moments)) + (at - (len(accuracy) - 1) / 2) * width
            heights = [100 * by_moment[moment] for moment in moments]
            hatch, ink = HATCHES[at % len(HATCHES)], INK[at % len(INK)]
            bars = panel.bar(
                places, heights, width * 0.94, color=ink, hatch=hatch, edgecolor="white", linewidth=0, label=dataset
            )
            panel.bar_label(bars, fmt="%.1f", fontsize=8, padding=1)
        panel.set_xticks(range(len(moments)), list(moments.values()))
        panel.tick_params(axis="x", length=0)
        panel.set_ylabel("test accuracy (%)")
        panel.set_xlabel("the network")
        panel.set_ylim(0, 108)
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(accuracy))
    return path
