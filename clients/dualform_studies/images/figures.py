"""Figures in the manner of the paper's, drawn from what a memory answered; every figure is one PNG of page width.

A figure shows one query; its panels are the layers, its horizontal axis the training classes of each dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import EngFormatter, MaxNLocator

from dualform_studies.images.datasets import Dataset
from dualform_studies.images.query_figure import GIVEN, TRUE, Query, query_figure, show_picture
from dualform_studies.images.spotlight import LayerSpotlight
from dualform_studies.pages.frame import INK, new_figure

_PANEL = 1.65
"""Inches: the height of one layer's panel."""
_THOUSAND = 1000
"""From here on, sums are written with k and M."""


def draw_distribution(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """Attention weights over the training datapoints: of each class the greatest, in descending order.

    `paper` names the paper's figure that this one stands beside, as "Figure 4"; so in the figures below.
    """
    title = f"Attention weights over training datapoints ({paper} of the paper)"
    deepest = max(len(best) for layer in layers for best in layer.best)
    with query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        axes = _panels(figure, layers, query, datasets)
        for panel, layer in zip(axes, layers, strict=True):
            for at, ((dataset, _), best) in enumerate(zip(layer.groups, layer.best, strict=True)):
                places = at + 0.04 + 0.92 * np.arange(len(best)) / deepest
                panel.fill_between(places, best, color=_ink(dataset, datasets), linewidth=0, step="post")
            panel.set_ylabel("attention weight\n" r"$|\alpha|$ (no unit)")
            panel.set_ylim(bottom=0)
        axes[-1].set_xlabel(f"training class; of each, the {deepest} datapoints of greatest weight, descending")
        figure.align_ylabels(axes)
    return path


def draw_sums(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """All attention weights of each class summed."""
    title = f"Attention weights summed over each training class ({paper} of the paper)"
    return _draw_sums(path, layers, query, datasets, title, "summed weights\n" r"$\Sigma\,|\alpha|$ (no unit)")


def draw_weighted_sums(path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset]) -> Path:
    """The same for attention weights times the norm of the error that each brings (error_norm.py)."""
    title = "Attention weights times error norms summed over each training class"
    label = "weighted sums\n" r"$\Sigma\,|\alpha|\,\Vert e\Vert$ (no unit)"
    return _draw_sums(path, layers, query, datasets, title, label)


def _draw_sums(
    path: Path,
    layers: Sequence[LayerSpotlight],
    query: Query,
    datasets: Sequence[Dataset],
    title: str,
    label: str,
) -> Path:
    with query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        axes = _panels(figure, layers, query, datasets)
        for panel, layer in zip(axes, layers, strict=True):
            colours = [_ink(dataset, datasets) for dataset, _ in layer.groups]
            panel.bar(np.arange(len(layer.groups)) + 0.5, layer.sums, width=0.72, color=colours)
            if max(layer.sums) >= _THOUSAND:
                panel.yaxis.set_major_formatter(EngFormatter(sep=" "))
            panel.set_ylabel(label)
        axes[-1].set_xlabel("training class")
        figure.align_ylabels(axes)
    return path


def draw_top_images(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """The training images attended to most, layer by layer."""
    sources = {dataset.name: dataset for dataset in datasets}
    most = max(len(layer.top) for layer in layers)
    title = f"Training images attended to most ({paper} of the paper)"
    with query_figure(path, query, title, 1.78 * len(layers), classes=False) as figure:
        grid = figure.subplots(len(layers), most, squeeze=False)
        for panels, layer in zip(grid, layers, strict=True):
            panels[0].set_ylabel(layer.layer)
            for panel in panels[len(layer.top) :]:
                panel.set_axis_off()
            for panel, hit in zip(panels, layer.top, strict=False):
                source = sources[hit["dataset"]]
                caption = f"{source.name}: {source.label_names[hit['label']]}\n"
                caption += f"weight {hit['score']:,.4g}, step {hit['step']:,}"
                show_picture(panel, source.picture(source.train.pixels[hit["sample"]]), caption)
    return path


def draw_accuracies(path: Path, accuracy: Mapping[str, Mapping[str, float]], moments: Mapping[str, str]) -> Path:
    """Test accuracy of each dataset at each moment; `moments` gives the words under the bars."""
    with new_figure(path, 2.5) as figure:
        axes = figure.subplots()
        width = 0.8 / len(accuracy)
        for at, (dataset, by_moment) in enumerate(accuracy.items()):
            places = np.arange(len(moments)) + (at - (len(accuracy) - 1) / 2) * width
            heights = [100 * by_moment[moment] for moment in moments]
            bars = axes.bar(places, heights, width * 0.94, color=INK[at % len(INK)], label=dataset)
            axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=1)
        axes.set_xticks(range(len(moments)), list(moments.values()))
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("test accuracy (%)")
        axes.set_xlabel("the network")
        axes.set_ylim(0, 108)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(accuracy))
    return path


def _panels(
    figure: SubFigure, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset]
) -> list[Axes]:
    """One panel a layer, with the classes of each dataset along the bottom and the query's classes shaded."""
    axes = list(figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0])
    for panel, layer in zip(axes, layers, strict=True):
        panel.set_title(layer.layer, loc="left", pad=3)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.tick_params(axis="x", length=0)
        _shade(panel, layer.groups, query)
    _name_classes(axes[-1], layers[-1].groups, datasets)
    _name_datasets(axes, layers[0].groups, datasets)
    return axes


def _shade(panel: Axes, groups: Sequence[tuple[str, int]], query: Query) -> None:
    panel.set_xlim(0, len(groups))
    for at, (dataset, label) in enumerate(groups):
        panel.axvline(at, color="0.88", linewidth=0.5, zorder=0)
        if (dataset, label) == (query.dataset.name, query.label):
            panel.axvspan(at, at + 1, color=TRUE, zorder=-1, linewidth=0)
        # All datasets share the outputs: the class recognised stands for its datapoints in any of them.
        elif label == query.given != query.label:
            panel.axvspan(at, at + 1, color=GIVEN, zorder=-1, linewidth=0)


def _name_classes(panel: Axes, groups: Sequence[tuple[str, int]], datasets: Sequence[Dataset]) -> None:
    names = {dataset.name: dataset.label_names for dataset in datasets}
    panel.set_xticks(np.arange(len(groups)) + 0.5, [names[dataset][label] for dataset, label in groups])
    for (dataset, _), tick in zip(groups, panel.get_xticklabels(), strict=True):
        if max(map(len, names[dataset])) > 2:
            tick.set(rotation=35, ha="right", rotation_mode="anchor")


def _name_datasets(axes: Sequence[Axes], groups: Sequence[tuple[str, int]], datasets: Sequence[Dataset]) -> None:
    for dataset in datasets:
        members = [at for at, (name, _) in enumerate(groups) if name == dataset.name]
        if not members:
            continue
        middle, ink = (members[0] + members[-1] + 1) / 2, _ink(dataset.name, datasets)
        above = axes[0].get_xaxis_transform()
        axes[0].text(middle, 1.03, dataset.name, transform=above, ha="center", color=ink, fontsize=9, weight="bold")
        for panel in axes:
            panel.axvline(members[0], color="0.45", linewidth=0.8)


def _ink(name: str, datasets: Sequence[Dataset]) -> str:
    return INK[[dataset.name for dataset in datasets].index(name) % len(INK)]
