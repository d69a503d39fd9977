"""One panel a layer, with the training classes of each dataset along the bottom and the query's own marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.prediction.spotlight import LayerSpotlight
from dualform_studies.images.query_figure import GIVEN_AREA, GIVEN_MARK, TRUE_AREA, TRUE_MARK, Query
from dualform_studies.pages.frame import INK

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
