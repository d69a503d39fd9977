"""One prediction explained: what it attends to, in figures like the paper's and in tables.

What one prediction attends to, asked of a memory in process or over gRPC. Shapes: G groups (dataset, label).

Scores are absolute at every layer, as in the paper's code: inputs of the first layer may be negative, and after relu
the absolute value changes nothing.

Figures in the manner of the paper's, drawn from what a memory answered; every figure is one PNG of page width.

A figure shows one query; its panels are the layers, its horizontal axis the training classes of each dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from dualform_studies.figures import HATCHES, INK, new_figure
from dualform_studies.images.attention import TOP
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
from dualform_studies.images.training import Verdict, query_set_name
from dualform_studies.report import Page, Report, Table, listed, percent, report_folder

_BY = ("dataset", "label")
_RANKED_AT_ONCE = 64


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
    where: str | None = None,
    per_group: int = 500,
    top: int = 5,
) -> list[LayerSpotlight]:
    """Distribution, sums and top images of one stored query at each layer (figures 8, 9 and 22 of the paper)."""
    return [_ask_layer(memory, layer, query, datasets, where, per_group, top) for layer in layers]


def _ask_layer(
    memory: Answers,
    layer: str,
    query: QuerySetExamples,
    datasets: Sequence[str],
    where: str | None,
    per_group: int,
    top: int,
) -> LayerSpotlight:
    sums = memory.group_sum(layer, query, by=_BY, where=where, score="abs")
    best = memory.topk(layer, query, k=per_group, by=_BY, where=where, score="abs")
    scores = {group: np.abs(best.scores[0][at]) for at, group in enumerate(best.groups or ())}
    order = sorted(range(len(sums.groups)), key=lambda at: (datasets.index(sums.groups[at][0]), sums.groups[at][1]))
    return LayerSpotlight(
        layer=layer,
        groups=tuple((str(sums.groups[at][0]), int(sums.groups[at][1])) for at in order),
        best=[scores[sums.groups[at]] for at in order],
        sums=sums.sums[0][order],
        counts=sums.counts[order],
        top=_top_images(memory, layer, query, where, top),
    )


def _top_images(
    memory: Answers, layer: str, query: QuerySetExamples, where: str | None, top: int
) -> list[dict[str, Any]]:
    """The best datapoint of each of the `top` best images; an image comes back in every epoch, with a like key."""
    k = 16 * top
    while True:
        hits = memory.topk(layer, query, k=k, where=where, score="abs")
        records = memory.slots(hits).records()
        images: dict[tuple[str, int], dict[str, Any]] = {}
        for record, score in zip(records, hits.scores[0], strict=True):
            images.setdefault((record["dataset"], record["sample"]), {**record, "score": abs(float(score))})
        if len(images) >= top or len(records) < k:
            return list(images.values())[:top]
        k *= 4


def clearest_interference(
    memory: Answers, layer: str, query_set: str, rows: NDArray[np.int64], given: NDArray[np.int64], intruder: str
) -> int | None:
    """The row whose wrong class the intruding dataset explains best, None where there is no row.

    `given[i]` is the class that the network gives row `rows[i]`. A row counts by the share of its attention at `layer`
    that goes to the intruder's datapoints of that class; rows where these are the strongest group come first.
    """
    best: tuple[bool, float, int] | None = None
    for start in range(0, len(rows), _RANKED_AT_ONCE):
        part = rows[start : start + _RANKED_AT_ONCE]
        answer = memory.group_sum(layer, QuerySetExamples(query_set, tuple(part.tolist())), by=_BY, score="abs")
        for row, label, sums in zip(part, given[start : start + _RANKED_AT_ONCE], answer.sums, strict=True):
            if (intruder, int(label)) not in answer.groups:
                continue
            group = answer.groups.index((intruder, int(label)))
            found = (bool(sums.argmax() == group), float(sums[group] / sums.sum()), -int(row))
            best = found if best is None else max(best, found)
    return None if best is None else -best[2]


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


def accuracy_table(accuracy: Mapping[str, Mapping[str, float]], moments: Mapping[str, str]) -> Table:
    """`accuracy` by dataset and moment; `moments` says each in words."""
    rows = [
        (words.replace("\n", " "), *(percent(by_moment[moment]) for by_moment in accuracy.values()))
        for moment, words in moments.items()
    ]
    return Table("accuracy", "Test accuracy.", ("network", *accuracy), rows)


def example_tables(name: str, example: Report) -> Iterator[Table]:
    """The images attended to most and the sums over classes, of one query at each layer."""
    layers = example["layers"]
    yield Table(
        f"{name}-top-images",
        f"{describe(example)}: the training images attended to most, each with its visit of greatest weight.",
        ("layer", "rank", "dataset", "label", "image", "step", "slot", "attention weight"),
        [
            (layer, rank, *(hit[key] for key in ("dataset", "label", "sample", "step", "slot")), f"{hit['score']:,.2f}")
            for layer, found in layers.items()
            for rank, hit in enumerate(found["top"], start=1)
        ],
    )
    groups = [(each["dataset"], each["label"], each["count"]) for each in next(iter(layers.values()))["sums"]]
    sums = [[each["sum"] for each in found["sums"]] for found in layers.values()]
    yield Table(
        f"{name}-sums",
        f"{describe(example)}: attention weights summed over each class.",
        ("dataset", "label", "datapoints", *layers),
        [(*group, *(f"{of_layer[at]:,.0f}" for of_layer in sums)) for at, group in enumerate(groups)],
    )


def strongest_table(examples: Mapping[str, Report]) -> Table:
    """The class that draws most attention at each layer, and how the class of the query fares, of each example."""
    rows = []
    for example in examples.values():
        for layer, found in example["layers"].items():
            sums = {(one["dataset"], one["label"]): one["sum"] for one in found["sums"]}
            own = sums[tuple(example["group"])]
            rank = 1 + sum(other > own for other in sums.values())
            top = ", ".join(f"{hit['dataset']} {hit['label']}" for hit in found["top"][:TOP])
            strongest = f"{found['strongest']['dataset']} {found['strongest']['label']}"
            rows.append((example["label"], layer, top, strongest, f"{100 * own / sum(sums.values()):.1f}", rank))
    caption = (
        f"Of each query and layer: dataset and class of the {TOP} different images attended to most, the class of "
        "greatest summed attention, and share and rank, among all classes, of the query's own."
    )
    columns = ("query", "layer", "images attended to most", "greatest sum", "own class (%)", "rank")
    return Table("strongest", caption, columns, rows)


def describe(example: Report) -> str:
    """One line: which query, its class, and what the network takes it for."""
    given = example["recognised_as"]
    masked = f", with the mask as {given['masked']}" if "masked" in given else ""
    return f"Query {example['query']}, class {example['label']}, recognised as {given['final']}{masked}"


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
    """The same for attention weights times the norm of the error that each brings (single.py)."""
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


@dataclass(frozen=True)
class PaperFigures:
    """The paper's figures that an example's three stand beside."""

    distribution: str = "Figures 4, 6 and 8"
    sums: str = "Figures 5, 7 and 9"
    top_images: str = "Figures 10, 11 and 22"


_CANDIDATES = 128
"""Spoilt test images among which the clearest is looked for: every one costs a pass over all keys of a layer."""


def choose_interference(
    memory: Answers, judged: Verdict, layer: str, mistake: tuple[int, int] | None = None
) -> Query | None:
    """The test image of the first dataset that the second spoils clearly, None where it spoils none.

    It is recognised after the first dataset, mistaken at the end, and recognised again with the second one masked. Of
    one class taken for another, as `mistake` names them, where there is such an image.
    """
    first, second = judged.pair
    rows = judged.interfered(mistake)
    if not len(rows):
        rows = judged.interfered()
    rows = rows[:_CANDIDATES]
    given = judged.classes["final"][first.name]
    row = clearest_interference(memory, layer, query_set_name(first), rows, given[rows], second.name)
    return None if row is None else Query(first, row, int(given[row]))


def choose_recognised(dataset: Dataset, given: NDArray[np.int64]) -> Query | None:
    """The first test image that is recognised as labelled; None where there is none.

    `given` is int64[n], the class that the network gives each test image.
    """
    wanted = given == dataset.test.labels
    row = int(wanted.argmax())
    return Query(dataset, row, int(given[row])) if wanted[row] else None


def draw_example(
    memory: Answers,
    query: Query,
    layers: Sequence[str],
    datasets: Sequence[Dataset],
    folder: Path,
    name: str,
    beside: PaperFigures,
    *,
    masked: int | None = None,
    query_set: str | None = None,
    where: str | None = None,
    how: str = "",
) -> Report:
    """Ask for one query's attention at each layer; write three figures, and return what they show.

    `datasets` in the order of training; `masked` is the class that the masked network gives the query; `query_set`
    holds it, the one of all its dataset's test images where none is named; `where` limits what is asked about; `how`
    says why this query is shown.
    """
    query_set = query_set or query_set_name(query.dataset)
    names = [dataset.name for dataset in datasets]
    spotlight = ask_spotlight(memory, layers, QuerySetExamples(query_set, (query.row,)), names, where=where)
    figures = [
        draw_distribution(folder / f"{name}-distribution.png", spotlight, query, datasets, beside.distribution),
        draw_sums(folder / f"{name}-sums.png", spotlight, query, datasets, beside.sums),
        draw_top_images(folder / f"{name}-top-images.png", spotlight, query, datasets, beside.top_images),
    ]
    return _report(query, query_set, masked, spotlight) | {"how": how, "figures": [figure.name for figure in figures]}


def show_example(page: Page, name: str, example: Report, beside: PaperFigures) -> None:
    """The figures of `draw_example` and their tables, under a heading of their own."""
    page.heading(describe(example))
    if example["how"]:
        page.paragraph(example["how"])
    captions = (
        "Attention weights over the training datapoints: of each class the greatest, by rank "
        f"({beside.distribution} of the paper).",
        f"Attention weights summed over each training class ({beside.sums} of the paper).",
        f"The training images attended to most ({beside.top_images} of the paper).",
    )
    for figure, caption in zip(example["figures"], captions, strict=True):
        page.figure(report_folder(page.run) / figure, caption)
    page.show(*example_tables(name, example))


def _report(query: Query, query_set: str, masked: int | None, layers: Sequence[LayerSpotlight]) -> Report:
    """One query, what it is recognised as (with the mask, too, where there is one), and the attention of each layer."""
    names = query.dataset.label_names
    given = {"final": names[query.given]} | ({} if masked is None else {"masked": names[masked]})
    return {
        "query": f"{query_set}/{query.row}",
        "label": names[query.label],
        "group": [query.dataset.name, query.label],
        "recognised_as": given,
        "layers": {
            layer.layer: {
                "top": list(layer.top),
                "sums": [
                    {"dataset": dataset, "label": label, "sum": float(total), "count": int(count)}
                    for (dataset, label), total, count in zip(layer.groups, layer.sums, layer.counts, strict=True)
                ],
                "strongest": dict(zip(("dataset", "label"), layer.strongest, strict=True)),
            }
            for layer in layers
        },
    }
