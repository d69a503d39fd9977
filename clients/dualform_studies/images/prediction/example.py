"""One prediction explained: which one to show, its figures and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.prediction.figures import draw_distribution, draw_sums, draw_top_images
from dualform_studies.images.prediction.spotlight import LayerSpotlight, ask_spotlight, clearest_interference
from dualform_studies.images.prediction.tables import describe, example_tables
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training.recorded import query_set_name
from dualform_studies.images.training.succession import Verdict
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page


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
