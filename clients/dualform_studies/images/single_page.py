"""The page of the single-task study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform_studies.certificates import certificate_table
from dualform_studies.images.example import show_example
from dualform_studies.images.recency import recency_table
from dualform_studies.images.single_views import BESIDE
from dualform_studies.images.table1 import CELLS, in_words, is_met, table_1
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page

_THIRD = 1 / 3


def single_page(out: Path, report: Report) -> Page:
    page = Page(out, "Single task: MNIST (section 5.2)")
    page.paragraph(_recipe(report))
    page.show(_accuracy_table(report))
    page.heading("Table 1")
    page.paragraph(_verdict(report))
    page.show(table_1({int(step): cells for step, cells in report["table_1"].items()}, report["runs"]))
    for digit, example in report["examples"].items():
        show_example(page, f"digit-{digit}", example, BESIDE[int(digit)])
    page.heading("Weighted by the error's norm")
    page.paragraph(
        "The side note of section 5.2: each attention weight times the norm of the error that it brings. The paper saw "
        f"no consistent trend in it. {_agreement(report)} The table holds the cells of Table 1 for these sums and, of "
        "the same run, for the plain ones."
    )
    page.show(_error_norm_table(report))
    page.figure(
        report_folder(out) / "error-norm-sums.png",
        "Attention weights times error norms summed over each training class (the side note of section 5.2; beside "
        "Figure 5 of the paper).",
    )
    page.heading("When the best datapoints were trained on")
    page.paragraph(
        "The paper finds the 500 datapoints of greatest weight spread over time, with no clear pattern that recent "
        f"ones are more important. {_late(report['recency'])} At layer-0 a key is an image, the same in each epoch, so "
        "its datapoints come evenly."
    )
    page.figure(
        report_folder(out) / "recency.png",
        "When the 500 datapoints of greatest attention weight were trained on (no figure of the paper; the end of its "
        "section 5.2).",
    )
    page.show(recency_table(report["recency"]))
    page.heading("The certificate")
    page.show(certificate_table(report["verify"]))
    return page


def _recipe(report: Report) -> str:
    first, runs = report["seed"], report["runs"]
    trained = f"One network was trained, of seed {first}"
    if runs > 1:
        trained = f"{runs} networks were trained, of seeds {first} to {first + runs - 1}, on the same images"
    return (
        f"The recipe of the paper's code: {report['recipe']}; {report['training_images']:,} of MNIST's training images "
        "(a sixth is held out for validation, then a fifth of the rest), normalised by mean and deviation. "
        f"{trained}; the memory kept is the first one's. The paper's text says vanilla SGD and 3,000 updates, its code "
        "momentum and 5,000 updates, so every network is looked at after both. The figures are of the first network "
        f"after {report['look']:,} updates, asked with the mask `step < {report['look']}`, and each is of the first "
        "test image of its class that this network recognises."
    )


def _accuracy_table(report: Report) -> Table:
    columns = ["updates", *(f"seed {report['seed'] + run}" for run in range(report["runs"])), "paper"]
    rows: list[list[Cell]] = [
        [f"{int(step):,}", *(f"{100 * value:.2f} %" for value in runs), "97 %"]
        for step, runs in report["accuracy"].items()
    ]
    return Table("accuracy", "Test accuracy on MNIST.", columns, rows)


def _verdict(report: Report) -> str:
    """How many cells are met."""
    looks = report["table_1"]
    cells = [[looks[step][layer][cell] for step in looks] for layer in next(iter(looks.values())) for cell in CELLS]
    met = sum(any(map(is_met, cell)) for cell in cells)
    by_look = (
        f"{sum(is_met(cell[at]) for cell in cells)} after {int(step):,} updates" for at, step in enumerate(looks)
    )
    return (
        "The class that draws most attention is the argmax of a layer's absolute attention weights summed over each "
        f"class. {met} of the {len(cells)} cells are within two of the paper's deviations, or two points, at the "
        f"number of updates that fits better ({', '.join(by_look)})."
    )


def _late(recency: Report) -> str:
    """How the layers behind the first spread, in a sentence."""
    layers = list(recency)[1:]
    shares = " and ".join(f"{100 * recency[layer]['last_third']:.1f} % at {layer}" for layer in layers)
    fewer = all(recency[layer]["last_third"] < _THIRD for layer in layers)
    told = " They are not more important here either: the early ones are." if fewer else ""
    return f"Of ours, {shares} come from the last third of the training, where an even spread has 33.3 %.{told}"


def _agreement(report: Report) -> str:
    """What the weighting does to the argmax where the network is right, in a sentence."""
    step = str(report["look"])
    plain = [layer["yes"]["runs"][0] for layer in report["table_1"][step].values()]
    weighted = [layer["yes"] for layer in report["error_norm"][step].values()]
    return (
        f"Where the network is right, the class of the greatest weighted sum is the true one for {_listed(weighted)} % "
        f"of the test images (layer by layer, after {report['look']:,} updates), that of the greatest plain sum for "
        f"{_listed(plain)} %."
    )


def _listed(values: Sequence[float | None]) -> str:
    return ", ".join(in_words(value, None) for value in values)


def _error_norm_table(report: Report) -> Table:
    columns = ["updates", "layer", "network right", "argmax beside", "plain sums", "weighted sums"]
    return Table(
        "error-norm",
        f"Table 1 of the first run (seed {report['seed']}), in per cent, from plain sums and from sums weighted by the "
        "error's norm.",
        columns,
        list(_error_norm_rows(report)),
    )


def _error_norm_rows(report: Report) -> Iterator[list[Cell]]:
    for step, layers in report["error_norm"].items():
        for layer, cells in layers.items():
            for cell, words in CELLS.items():
                plain = report["table_1"][step][layer][cell]["runs"][0]
                yield [f"{int(step):,}", layer, *words, in_words(plain, None), in_words(cells[cell], None)]
