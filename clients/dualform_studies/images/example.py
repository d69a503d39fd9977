"""One prediction of a succession, explained: which one to show, its figures and its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualform.answers import Answers
from dualform.questions import ProbeRows
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.figures import draw_distribution, draw_sums, draw_top_images
from dualform_studies.images.query_figure import Query
from dualform_studies.images.spotlight import LayerSpotlight, ask_spotlight, clearest_interference
from dualform_studies.images.succession import Judged, probe_name
from dualform_studies.images.tables import describe, example_tables
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page

_CANDIDATES = 128
"""Spoilt test images among which the clearest is looked for: every one costs a pass over all keys of a layer."""


def choose_interference(memory: Answers, judged: Judged, layer: str) -> Query | None:
    """The test image of the first dataset that the second spoils clearly, None where it spoils none.

    It is recognised after the first dataset, mistaken at the end, and recognised again with the second one masked.
    """
    first, second = judged.pair
    rows = judged.interfered()[:_CANDIDATES]
    given = judged.classes["final"][first.name]
    row = clearest_interference(memory, layer, probe_name(first), rows, given[rows], second.name)
    return None if row is None else Query(first, row, int(given[row]))


def choose_recognised(judged: Judged, dataset: Dataset) -> Query | None:
    """The first test image of a dataset that the final network classifies as labelled, None where there is none."""
    given = judged.classes["final"][dataset.name]
    right = given == dataset.test.labels
    row = int(right.argmax())
    return Query(dataset, row, int(given[row])) if right[row] else None


def draw_example(
    memory: Answers, judged: Judged, query: Query, layers: Sequence[str], folder: Path, name: str
) -> Report:
    """Ask for one query's attention at each layer; write three figures, and return what they show."""
    probe = probe_name(query.dataset)
    datasets = [dataset.name for dataset in judged.pair]
    spotlight = ask_spotlight(memory, layers, ProbeRows(probe, (query.row,)), datasets)
    figures = [
        draw_distribution(folder / f"{name}-distribution.png", spotlight, query, judged.pair),
        draw_sums(folder / f"{name}-sums.png", spotlight, query, judged.pair),
        draw_top_images(folder / f"{name}-top-images.png", spotlight, query, judged.pair),
    ]
    masked = int(judged.classes["masked"][query.dataset.name][query.row])
    return _report(query, probe, masked, spotlight) | {"figures": [figure.name for figure in figures]}


def show_example(page: Page, name: str, example: Report) -> None:
    """The figures of `draw_example` and their tables, under a heading of their own."""
    page.heading(describe(example))
    captions = (
        "Attention weights over the training datapoints (Figures 4, 6 and 8 of the paper): of each class the greatest.",
        "Attention weights summed over each training class (Figures 5, 7 and 9 of the paper).",
        "The training images attended to most (Figures 10, 11 and 22 of the paper).",
    )
    for figure, caption in zip(example["figures"], captions, strict=True):
        page.figure(report_folder(page.run) / figure, caption)
    page.show(*example_tables(name, example))


def _report(query: Query, probe: str, masked: int, layers: Sequence[LayerSpotlight]) -> Report:
    """One query, what it was recognised as at the end and with the mask, and the attention of each layer."""
    names = query.dataset.label_names
    return {
        "query": f"{probe}/{query.row}",
        "label": names[query.label],
        "recognised_as": {"final": names[query.given], "masked": names[masked]},
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
