"""The page of the single-task study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform_studies.images.claims import error_norm
from dualform_studies.images.claims.page import show_dates, show_hubs, show_prevalence
from dualform_studies.images.kernels.page import show_kernels
from dualform_studies.images.prediction.example import show_example
from dualform_studies.images.single.views import BESIDE
from dualform_studies.images.table1.cells import CELLS, cells_met
from dualform_studies.images.table1.page import HEADING, beside_table_1, in_words, runs_table, table_1
from dualform_studies.images.training.recipe import named_recipe
from dualform_studies.pages.claims import Beside, Claim, claims_table
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.reconstructions import reconstruction_table

_TEXT, _CODE = {3000: "97 %"}, {5000: "97.2 %, 97.4 %"}
"""Accuracies by number of updates: that of section 5.2, and those that the paper's code gave with the seeds 1 and 2."""


def beside_paper(report: Report) -> Iterator[Beside]:
    """Accuracies after those numbers of updates that the paper's text or code had, and Table 1 after the recipe's."""
    for step, runs in ((int(step), runs) for step, runs in reversed(report["accuracy"].items())):
        if step in _TEXT or step in _CODE:
            ours = percent(sum(runs) / len(runs))
            yield Beside(f"accuracy after {step:,} updates", ours, _TEXT.get(step, ""), _CODE.get(step, ""))
    if not report["variant"]:
        yield from beside_table_1(report["table_1"], report["steps"])


def single_page(out: Path, report: Report) -> Page:
    page = Page(out, "Single task: MNIST (section 5.2)")
    page.paragraph(_recipe(report))
    page.show(_accuracy_table(report), claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading(HEADING)
    page.paragraph(_cells(report))
    steps = report["steps"]
    page.show(
        table_1(report["table_1"], steps, report["runs"], variant=report["variant"]),
        runs_table(report["table_1"][str(steps)], steps, report["seed"]),
    )
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, BESIDE[name])
    show_hubs(page, report["hubs"])
    page.heading(error_norm.HEADING)
    page.paragraph(
        "The side note of section 5.2: each attention weight times the norm of the error that it brings. The paper saw "
        f"no consistent trend in it. {_agreement(report)} The first table holds the cells of Table 1 for these sums "
        "and, of the same run, for the plain ones."
    )
    page.show(_error_norm_table(report), error_norm.trend_table(report["error_norm_trends"]))
    page.figure(
        report_folder(out) / "error-norm-sums.png",
        "Attention weights times error norms summed over each training class (the side note of section 5.2; beside "
        "Figure 5 of the paper).",
    )
    show_dates(page, report["dates"])
    show_kernels(page, report["kernels"])
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _recipe(report: Report) -> str:
    first, runs = report["seed"], report["runs"]
    trained = f"One network was trained, of seed {first}"
    if runs > 1:
        trained = f"{runs} networks were trained on the same images, of seeds {first} to {first + runs - 1}"
    earlier = [int(step) for step in report["accuracy"] if int(step) != report["steps"]]
    variant = "".join(f", so each network is looked at after {step:,}, too" for step in earlier)
    return (
        f"Each network learns by {named_recipe(variant=report['variant'])}: {report['steps']:,} updates of "
        f"{report['recipe']}. It is trained on {report['trained_on']}. The paper's text says vanilla SGD and "
        f"3,000 updates{variant}. {trained}; the memory kept is the first one's, and the figures are of this first "
        "network at its end."
    )


def _accuracy_table(report: Report) -> Table:
    seeds = [f"seed {report['seed'] + run}" for run in range(report["runs"])]
    rows: list[list[Cell]] = [
        [f"{step:,}", *(percent(value, ".2f") for value in runs), _TEXT.get(step, "-"), _CODE.get(step, "-")]
        for step, runs in ((int(step), runs) for step, runs in reversed(report["accuracy"].items()))
    ]
    columns = ["updates", *seeds, "the paper's text", "the paper's code, two runs"]
    return Table("accuracy", "Test accuracy on MNIST.", columns, rows)


def _cells(report: Report) -> str:
    """How many cells are met."""
    looks, steps = report["table_1"], report["steps"]
    met = cells_met(looks[str(steps)])
    variants = "".join(
        f" After {int(step):,} updates, a variant, {cells_met(layers)} are."
        for step, layers in looks.items()
        if int(step) != steps
    )
    return (
        "The class that draws most attention is the argmax of a layer's absolute attention weights summed over each "
        f"class. {met} of the {len(looks[str(steps)]) * len(CELLS)} cells are met after {steps:,} "
        f"updates.{variants}"
    )


def _agreement(report: Report) -> str:
    """What the weighting does to the argmax where the network is right, in a sentence."""
    plain = [layer["yes"]["runs"][0] for layer in report["table_1"][str(report["steps"])].values()]
    weighted = [layer["yes"] for layer in report["error_norm"].values()]
    return (
        "Where the network is right, the class of the greatest weighted sum is the true one, layer by layer, for "
        f"{_by_layer(weighted)} % of the test images, that of the greatest plain sum for {_by_layer(plain)} %."
    )


def _by_layer(values: Sequence[float | None]) -> str:
    return " / ".join(in_words(value, None) for value in values)


def _error_norm_table(report: Report) -> Table:
    plain = report["table_1"][str(report["steps"])]
    rows = [
        (layer, *words, in_words(plain[layer][cell]["runs"][0], None), in_words(cells[cell], None))
        for layer, cells in report["error_norm"].items()
        for cell, words in CELLS.items()
    ]
    caption = (
        f"Table 1 of the first run (seed {report['seed']}) after {report['steps']:,} updates, in per cent, from plain "
        "sums and from sums weighted by the error's norm."
    )
    columns = ["layer", "network right", "argmax beside", "plain sums", "weighted sums"]
    return Table("error-norm", caption, columns, rows)
