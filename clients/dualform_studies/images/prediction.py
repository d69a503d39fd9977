"""One prediction explained: what it attends to, in figures in the manner of the paper's.

A figure shows one query under a header with its picture; its panels are the layers, its horizontal axis the training
classes of each dataset. Scores are absolute at every layer, as in the paper's code: inputs of the first layer may be
negative, and after relu the absolute value changes nothing. Shapes: G groups (dataset, label).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform_studies.figures import INK, Rows, new_figure, show_picture, show_pictures
from dualform_studies.images.datasets import Dataset
from dualform_studies.report import Page, Report, report_folder

TRUE_MARK, GIVEN_MARK = "★", "●"
"""After the name of the class that the query has, and of the one that the network gives it."""
TRUE_AREA: Any = {"facecolor": "#F8F0A6", "edgecolor": "none", "linewidth": 0}
GIVEN_AREA: Any = {"facecolor": "none", "edgecolor": "0.2", "linestyle": (0, (3, 2)), "linewidth": 0.9}
"""Behind the same two classes: one is filled and the other framed, so that no colour has to be seen."""

_HEADER = 0.85


@dataclass(frozen=True, eq=False)
class Query:
    """The test image that a figure is about."""

    dataset: Dataset
    row: int
    """Its row among the test images."""
    given: int
    """The class that the final network gives it."""

    @property
    def label(self) -> int:
        return int(self.dataset.test.labels[self.row])

    def __str__(self) -> str:
        true, given = (self.dataset.label_names[label] for label in (self.label, self.given))
        return f"{self.dataset.name} test image {self.row}, class {true}, recognised as {given}"


@contextmanager
def _query_figure(path: Path, query: Query, title: str, height: float, *, classes: bool) -> Iterator[SubFigure]:
    """A figure under a header with the query's picture; `classes` explains the marks of its classes."""
    recognised = query.given == query.label
    signs = [Patch(label=f"{TRUE_MARK} its class{', recognised' if recognised else ''}", **TRUE_AREA)]
    signs += [] if recognised else [Patch(label=f"{GIVEN_MARK} the class recognised", **GIVEN_AREA)]
    with new_figure(path, _HEADER + height) as figure:
        halves = figure.add_gridspec(2, 1, height_ratios=(_HEADER, height))
        header = figure.add_subfigure(halves[0])
        grid = header.add_gridspec(1, 2, width_ratios=(1, 9))
        show_picture(header.add_subplot(grid[0]), query.dataset.picture(query.dataset.test.pixels[query.row]))
        words = header.add_subplot(grid[1])
        words.set_axis_off()
        words.text(0, 0.97, title, va="top", fontsize=10, weight="bold", transform=words.transAxes)
        words.text(0, 0.56, f"query: {query}", va="top", transform=words.transAxes)
        if classes:
            words.legend(handles=signs, loc="lower left", bbox_to_anchor=(-0.007, -0.16), ncols=2, borderaxespad=0)
        yield figure.add_subfigure(halves[1])


_BY = ("dataset", "label")
_PER_GROUP, _TOP = 500, 5
"""The greatest weights of each class, and the images, that are shown."""


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
    memory: Answers, layers: Sequence[str], query: QuerySetExamples, datasets: Sequence[str]
) -> list[LayerSpotlight]:
    """Distribution, sums and top images of one stored query at each layer (figures 8, 9 and 22 of the paper)."""
    found = []
    for layer in layers:
        sums = memory.group_sum(layer, query, by=_BY, score="abs")
        best = memory.topk(layer, query, k=_PER_GROUP, by=_BY, score="abs")
        scores = {group: np.abs(best.scores[0][at]) for at, group in enumerate(best.groups or ())}
        hits = memory.topk(layer, query, k=_TOP, score="abs", distinct="sample")
        top = zip(memory.slots(hits).records(), hits.scores[0], strict=True)
        order = sorted(range(len(sums.groups)), key=lambda at: (datasets.index(sums.groups[at][0]), sums.groups[at][1]))
        found.append(
            LayerSpotlight(
                layer=layer,
                groups=tuple((str(sums.groups[at][0]), int(sums.groups[at][1])) for at in order),
                best=[scores[sums.groups[at]] for at in order],
                sums=sums.sums[0][order],
                counts=sums.counts[order],
                top=[{**record, "score": abs(float(score))} for record, score in top],
            )
        )
    return found


_PANEL = 1.65
"""Inches: the height of one layer's panel."""
_ABOVE = 14
"""Points between the first panel and its title, where the names of the datasets stand."""
_THOUSAND = 1000
"""From here on, sums are written with k and M."""
_POINTS = 100
"""Ranks of a class at which its line has a point, at most: there are no more pixels across a class."""
_DOTTED = (1, 10, 100)
"""Ranks at which it has a dot."""
_DIGITS = 4
"""Digits of the greatest attention weight shown; the others have as many decimals."""


@contextmanager
def _class_figure(
    path: Path,
    query: Query,
    title: str,
    layers: Sequence[LayerSpotlight],
    findings: Sequence[str],
    datasets: Sequence[Dataset],
) -> Iterator[list[Axes]]:
    """One panel a layer, titled by the layer and its finding; class number `at` is as wide as from `at` to `at + 1`."""
    with _query_figure(path, query, title, _PANEL * len(layers), classes=True) as figure:
        panels = list(figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0])
        for number, (panel, layer, finding) in enumerate(zip(panels, layers, findings, strict=True)):
            panel.set_title(f"{layer.layer}: {finding}", loc="left", pad=3 if number else _ABOVE)
            panel.yaxis.set_major_locator(MaxNLocator(4))
            panel.tick_params(axis="x", length=0)
            panel.set_xlim(0, len(layer.groups))
            for at, group in enumerate(layer.groups):
                panel.axvline(at, color="0.88", linewidth=0.5, zorder=0)
                if mark := _mark_of(group, query):
                    inset, order = (0.0, -1.0) if mark == TRUE_MARK else (0.03, 0.5)
                    area = TRUE_AREA if mark == TRUE_MARK else GIVEN_AREA
                    panel.axvspan(at + inset, at + 1 - inset, zorder=order, **area)
        _name_classes(panels[-1], layers[-1].groups, query, datasets)
        _name_datasets(panels, layers[0].groups, datasets)
        yield panels
        figure.align_ylabels(panels)


def _mark_of(group: tuple[str, int], query: Query) -> str:
    """The mark of the query's class, or of the one that a mistaken query is taken for: datasets share the outputs, so
    that one is marked in each of them.
    """
    if group == (query.dataset.name, query.label):
        return TRUE_MARK
    return GIVEN_MARK if group[1] == query.given != query.label else ""


def _name_classes(panel: Axes, groups: Sequence[tuple[str, int]], query: Query, datasets: Sequence[Dataset]) -> None:
    names = {dataset.name: dataset.label_names for dataset in datasets}
    marks = [_mark_of(group, query) for group in groups]
    labels = [f"{names[dataset][label]} {mark}".rstrip() for mark, (dataset, label) in zip(marks, groups, strict=True)]
    panel.set_xticks(np.arange(len(groups)) + 0.5, labels)
    for (dataset, _), mark, tick in zip(groups, marks, panel.get_xticklabels(), strict=True):
        if max(map(len, names[dataset])) > 2:
            tick.set(rotation=35, ha="right", rotation_mode="anchor")
        if mark:
            tick.set(weight="bold")


def _name_datasets(panels: Sequence[Axes], groups: Sequence[tuple[str, int]], datasets: Sequence[Dataset]) -> None:
    for name, ink in _inks(datasets).items():
        members = [at for at, (dataset, _) in enumerate(groups) if dataset == name]
        if members:
            middle, above = (members[0] + members[-1] + 1) / 2, panels[0].get_xaxis_transform()
            panels[0].text(middle, 1.03, name, transform=above, ha="center", color=ink, fontsize=9, weight="bold")
            for panel in panels:
                panel.axvline(members[0], color="0.45", linewidth=0.8)


def _inks(datasets: Sequence[Dataset]) -> dict[str, str]:
    """The colour of each dataset."""
    return {dataset.name: ink for dataset, ink in zip(datasets, INK, strict=False)}


def _in_words(group: tuple[str, int], datasets: Sequence[Dataset]) -> str:
    """A dataset and class, as "fashion-mnist dress"."""
    return next(f"{one.name} {one.label_names[group[1]]}" for one in datasets if one.name == group[0])


def draw_distribution(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """Attention weights over the training datapoints: of each class the greatest, by rank, on a logarithmic scale.

    `paper` names the paper's figure that this one stands beside, as "Figure 4"; so in the figures below.
    """
    title = f"Attention weights over training datapoints ({paper} of the paper)"
    deepest, inks = max(len(best) for layer in layers for best in layer.best), _inks(datasets)
    leaders = (layer.groups[int(np.argmax([max(best, default=-np.inf) for best in layer.best]))] for layer in layers)
    findings = [f"the greatest weight goes to {_in_words(group, datasets)}" for group in leaders]
    with _class_figure(path, query, title, layers, findings, datasets) as panels:
        for panel, layer in zip(panels, layers, strict=True):
            for at, ((dataset, _), best) in enumerate(zip(layer.groups, layer.best, strict=True)):
                if len(best):
                    _draw_ranked(panel, at, best, deepest, inks[dataset])
            panel.set_ylabel("attention weight\n" r"$|\alpha|$")
        dotted = ", ".join(str(rank) for rank in _DOTTED if rank <= deepest)
        panels[-1].set_xlabel(
            f"training class; within each, its {deepest} datapoints of greatest weight from the left,\n"
            f"ranks on a logarithmic scale (dots: ranks {dotted})"
        )
    return path


def _draw_ranked(panel: Axes, at: int, best: NDArray[np.float32], deepest: int, ink: str) -> None:
    """The weights of class number `at` from its left edge to its right."""
    ranks = np.unique(np.geomspace(1, len(best), _POINTS).round().astype(np.int64))
    dots = np.array([rank for rank in _DOTTED if rank <= len(best)])
    for shown, style in ((ranks, "-"), (dots, "o")):
        places = at + 0.08 + 0.84 * np.log(shown) / np.log(max(deepest, 2))
        panel.plot(places, best[shown - 1], style, color=ink, linewidth=1.4, markersize=2.8)


def draw_sums(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """All attention weights of each class summed."""
    title, inks = f"Attention weights summed over each training class ({paper} of the paper)", _inks(datasets)
    findings = [f"the greatest sum goes to {_in_words(layer.strongest, datasets)}" for layer in layers]
    with _class_figure(path, query, title, layers, findings, datasets) as panels:
        for panel, layer in zip(panels, layers, strict=True):
            colours = [inks[dataset] for dataset, _ in layer.groups]
            panel.bar(np.arange(len(layer.groups)) + 0.5, layer.sums, width=0.72, color=colours)
            if max(layer.sums) >= _THOUSAND:
                panel.yaxis.set_major_formatter(EngFormatter(sep=" "))
            panel.set_ylabel("summed weights\n" r"$\Sigma\,|\alpha|$")
        panels[-1].set_xlabel("training class")
    return path


def draw_top_images(
    path: Path, layers: Sequence[LayerSpotlight], query: Query, datasets: Sequence[Dataset], paper: str
) -> Path:
    """The training images attended to most, layer by layer, in columns by rank."""
    greatest = max(hit["score"] for layer in layers for hit in layer.top)
    decimals = max(0, _DIGITS - 1 - floor(log10(greatest))) if greatest > 0 else 0
    sources = {dataset.name: dataset for dataset in datasets}
    rows: Rows = {}
    for layer in layers:
        pictures = rows[layer.layer] = []
        for rank, hit in enumerate(layer.top, start=1):
            source = sources[hit["dataset"]]
            caption = f"{rank}. {source.name}: {source.label_names[hit['label']]}\n"
            caption += f"weight {hit['score']:,.{decimals}f}, step {hit['step']:,}"
            pictures.append((source.train_picture(hit["sample"]), caption))
    title = f"Training images attended to most, from the left ({paper} of the paper)"
    with _query_figure(path, query, title, 1.78 * len(layers), classes=False) as figure:
        show_pictures(figure, rows, max(map(len, rows.values())))
    return path


class PaperFigures(NamedTuple):
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
    asked = QuerySetExamples(query.dataset.query_set, (query.row,))
    spotlight = ask_spotlight(memory, layers, asked, [dataset.name for dataset in datasets])
    kinds = {"distribution": draw_distribution, "sums": draw_sums, "top-images": draw_top_images}
    figures = [
        draw(folder / f"{name}-{kind}.png", spotlight, query, datasets, paper)
        for (kind, draw), paper in zip(kinds.items(), beside, strict=True)
    ]
    labels = query.dataset.label_names
    return {
        "query": f"{query.dataset.query_set}/{query.row}",
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
    page.heading(f"Query {example['query']}, class {example['label']}, recognised as {example['recognised_as']}")
    captions = (
        "Attention weights over the training datapoints: of each class the greatest, by rank",
        "Attention weights summed over each training class",
        "The training images attended to most",
    )
    for figure, caption, paper in zip(example["figures"], captions, beside, strict=True):
        page.figure(report_folder(page.run) / figure, f"{caption} ({paper} of the paper).")
