"""One prediction explained: what it attends to, in figures in the manner of the paper's.

A figure shows one query; its panels are the layers, its horizontal axis the training classes of each dataset. Scores
are absolute at every layer, as in the paper's code: inputs of the first layer may be negative, and after relu the
absolute value changes nothing. Shapes: G groups (dataset, label).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform_studies.figures import INK
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.query_figure import (
    GIVEN_AREA,
    GIVEN_MARK,
    TRUE_AREA,
    TRUE_MARK,
    Query,
    query_figure,
    show_picture,
)
from dualform_studies.images.training import query_set_name
from dualform_studies.report import Page, Report, report_folder

_BY = ("dataset", "label")


@dataclass(frozen=True, eq=False)
class LayerSpotlight:
    """The attention of one layer."""

    layer: str
    groups: tuple[tuple[str, int], ...]
    """Dataset and label of each group, datasets in the order of training."""
    best: Sequence[NDArray[np.float32]]
    """For each group, its greatest attention weights in descending order."""
    sums: NDArray[np.float64]
    """float64[G]: all attention weights of a group summed."""
    counts: NDArray[np.int64]
    """int64[G]: training datapoints of each group."""
    top: Sequence[dict[str, Any]]
    """The training images attended to most: of each the datapoint of greatest weight, its slot columns and `score`."""

    @property
    def strongest(self) -> tuple[str, int]:
        """The group with the greatest sum."""
        return self.groups[int(np.argmax(self.sums))]


def ask_spotlight(
    memory: Answers,
    layers: Sequence[str],
    query: QuerySetExamples,
    datasets: Sequence[str],
    *,
    per_group: int = 500,
    top: int = 5,
) -> list[LayerSpotlight]:
    """Distribution, sums and top images of one stored query at each layer (figures 8, 9 and 22 of the paper)."""
    return [_ask_layer(memory, layer, query, datasets, per_group, top) for layer in layers]


def _ask_layer(
    memory: Answers,
    layer: str,
    query: QuerySetExamples,
    datasets: Sequence[str],
    per_group: int,
    top: int,
) -> LayerSpotlight:
    sums = memory.group_sum(layer, query, by=_BY, score="abs")
    best = memory.topk(layer, query, k=per_group, by=_BY, score="abs")
    scores = {group: np.abs(best.scores[0][at]) for at, group in enumerate(best.groups or ())}
    order = sorted(range(len(sums.groups)), key=lambda at: (datasets.index(sums.groups[at][0]), sums.groups[at][1]))
    return LayerSpotlight(
        layer=layer,
        groups=tuple((str(sums.groups[at][0]), int(sums.groups[at][1])) for at in order),
        best=[scores[sums.groups[at]] for at in order],
        sums=sums.sums[0][order],
        counts=sums.counts[order],
        top=_top_images(memory, layer, query, top),
    )


def _top_images(memory: Answers, layer: str, query: QuerySetExamples, top: int) -> list[dict[str, Any]]:
    """The best datapoint of each of the `top` best images; an image comes back in every epoch, with a like key."""
    k = 16 * top
    while True:
        hits = memory.topk(layer, query, k=k, score="abs")
        records = memory.slots(hits).records()
        images: dict[tuple[str, int], dict[str, Any]] = {}
        for record, score in zip(records, hits.scores[0], strict=True):
            images.setdefault((record["dataset"], record["sample"]), {**record, "score": abs(float(score))})
        if len(images) >= top or len(records) < k:
            return list(images.values())[:top]
        k *= 4


_ABOVE = 14
"""Points between the first panel and its title, where the names of the datasets stand."""


def class_panels(
    figure: SubFigure,
    layers: Sequence[LayerSpotlight],
    findings: Sequence[str],
    query: Query,
    datasets: Sequence[Dataset],
) -> list[Axes]:
    """One panel a layer, titled by the layer and its finding; class number `at` is as wide as from `at` to `at + 1`."""
    panels = list(figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0])
    for number, (panel, layer, finding) in enumerate(zip(panels, layers, findings, strict=True)):
        panel.set_title(f"{layer.layer}: {finding}", loc="left", pad=3 if number else _ABOVE)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.tick_params(axis="x", length=0)
        _mark_classes(panel, layer.groups, query)
    _name_classes(panels[-1], layers[-1].groups, query, datasets)
    _name_datasets(panels, layers[0].groups, datasets)
    return panels


def named_group(group: tuple[str, int], datasets: Sequence[Dataset]) -> str:
    """A dataset and class in words, as "fashion-mnist dress"."""
    dataset, label = group
    return f"{dataset} {_label_names(datasets)[dataset][label]}"


def ink_of(name: str, datasets: Sequence[Dataset]) -> str:
    """The colour of a dataset."""
    return INK[[dataset.name for dataset in datasets].index(name) % len(INK)]


def _is_true(group: tuple[str, int], query: Query) -> bool:
    return group == (query.dataset.name, query.label)


def _is_given(group: tuple[str, int], query: Query) -> bool:
    """Whether a mistaken query is taken for it: datasets share the outputs, so the class is marked in each of them."""
    return group[1] == query.given != query.label and not _is_true(group, query)


def _mark_classes(panel: Axes, groups: Sequence[tuple[str, int]], query: Query) -> None:
    panel.set_xlim(0, len(groups))
    for at, group in enumerate(groups):
        panel.axvline(at, color="0.88", linewidth=0.5, zorder=0)
        if _is_true(group, query):
            panel.axvspan(at, at + 1, zorder=-1, **TRUE_AREA)
        elif _is_given(group, query):
            panel.axvspan(at + 0.03, at + 0.97, zorder=0.5, **GIVEN_AREA)


def _name_classes(panel: Axes, groups: Sequence[tuple[str, int]], query: Query, datasets: Sequence[Dataset]) -> None:
    names = _label_names(datasets)
    marks = [TRUE_MARK if _is_true(group, query) else GIVEN_MARK * _is_given(group, query) for group in groups]
    labels = [f"{names[dataset][label]} {mark}".rstrip() for mark, (dataset, label) in zip(marks, groups, strict=True)]
    panel.set_xticks(np.arange(len(groups)) + 0.5, labels)
    for (dataset, _), mark, tick in zip(groups, marks, panel.get_xticklabels(), strict=True):
        if max(map(len, names[dataset])) > 2:
            tick.set(rotation=35, ha="right", rotation_mode="anchor")
        if mark:
            tick.set(weight="bold")


def _name_datasets(panels: Sequence[Axes], groups: Sequence[tuple[str, int]], datasets: Sequence[Dataset]) -> None:
    for dataset in datasets:
        members = [at for at, (name, _) in enumerate(groups) if name == dataset.name]
        if not members:
            continue
        middle, ink = (members[0] + members[-1] + 1) / 2, ink_of(dataset.name, datasets)
        above = panels[0].get_xaxis_transform()
        panels[0].text(middle, 1.03, dataset.name, transform=above, ha="center", color=ink, fontsize=9, weight="bold")
        for panel in panels:
            panel.axvline(members[0], color="0.45", linewidth=0.8)


def _label_names(datasets: Sequence[Dataset]) -> dict[str, Sequence[str]]:
    return {dataset.name: dataset.label_names for dataset in datasets}


def describe(example: Report) -> str:
    """One line: which query, its class, and what the network takes it for."""
    return f"Query {example['query']}, class {example['label']}, recognised as {example['recognised_as']}"


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
        dotted = ", ".join(str(rank) for rank in _DOTTED if rank <= deepest)
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
    findings = [f"the greatest sum goes to {named_group(layer.strongest, datasets)}" for layer in layers]
    with query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        panels = class_panels(figure, layers, findings, query, datasets)
        for panel, layer in zip(panels, layers, strict=True):
            colours = [ink_of(dataset, datasets) for dataset, _ in layer.groups]
            panel.bar(np.arange(len(layer.groups)) + 0.5, layer.sums, width=0.72, color=colours)
            if max(layer.sums) >= _THOUSAND:
                panel.yaxis.set_major_formatter(EngFormatter(sep=" "))
            panel.set_ylabel("summed weights\n" r"$\Sigma\,|\alpha|$")
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


@dataclass(frozen=True)
class PaperFigures:
    """The paper's figures that an example's three stand beside."""

    distribution: str = "Figures 4, 6 and 8"
    sums: str = "Figures 5, 7 and 9"
    top_images: str = "Figures 10, 11 and 22"


def draw_example(
    memory: Answers,
    query: Query,
    layers: Sequence[str],
    datasets: Sequence[Dataset],
    folder: Path,
    name: str,
    beside: PaperFigures,
) -> Report:
    """Ask for one query's attention at each layer; write three figures, and return what they show.

    `datasets` in the order of training.
    """
    query_set = query_set_name(query.dataset)
    names = [dataset.name for dataset in datasets]
    spotlight = ask_spotlight(memory, layers, QuerySetExamples(query_set, (query.row,)), names)
    figures = [
        draw_distribution(folder / f"{name}-distribution.png", spotlight, query, datasets, beside.distribution),
        draw_sums(folder / f"{name}-sums.png", spotlight, query, datasets, beside.sums),
        draw_top_images(folder / f"{name}-top-images.png", spotlight, query, datasets, beside.top_images),
    ]
    labels = query.dataset.label_names
    return {
        "query": f"{query_set}/{query.row}",
        "label": labels[query.label],
        "group": [query.dataset.name, query.label],
        "recognised_as": labels[query.given],
        "layers": {
            layer.layer: {
                "top": list(layer.top),
                "sums": [
                    {"dataset": dataset, "label": label, "sum": float(total), "count": int(count)}
                    for (dataset, label), total, count in zip(layer.groups, layer.sums, layer.counts, strict=True)
                ],
                "strongest": dict(zip(("dataset", "label"), layer.strongest, strict=True)),
            }
            for layer in spotlight
        },
        "figures": [figure.name for figure in figures],
    }


def show_example(page: Page, example: Report, beside: PaperFigures) -> None:
    """The figures of `draw_example` under a heading of their own."""
    page.heading(describe(example))
    captions = (
        "Attention weights over the training datapoints: of each class the greatest, by rank "
        f"({beside.distribution} of the paper).",
        f"Attention weights summed over each training class ({beside.sums} of the paper).",
        f"The training images attended to most ({beside.top_images} of the paper).",
    )
    for figure, caption in zip(example["figures"], captions, strict=True):
        page.figure(report_folder(page.run) / figure, caption)
