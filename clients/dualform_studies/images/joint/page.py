"""The page of the joint study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dualform_studies.images.claims.crossing import crossing_table
from dualform_studies.images.claims.page import show_dates, show_hubs, show_prevalence
from dualform_studies.images.prediction.example import PaperFigures, show_example
from dualform_studies.images.prediction.tables import strongest_table
from dualform_studies.images.training.recipe import named_recipe
from dualform_studies.pages.claims import Beside, Claim, claims_table
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.reconstructions import reconstruction_table

_TEXT = {"mnist": "97 %", "fashion-mnist": "87 %"}
_CODE = {"mnist": "96.1 %", "fashion-mnist": "87.0 %"}
"""Accuracies: those that section 5.3 names, and those that its code gave when it was run again."""


def beside_paper(report: Report) -> Iterator[Beside]:
    """Accuracies beside the paper's; none of a variant."""
    for name, reached in report["accuracy"].items():
        if not report["variant"]:
            yield Beside(f"accuracy on {name}", percent(reached), _TEXT[name], _CODE[name])


def joint_page(out: Path, report: Report, beside: Mapping[str, PaperFigures]) -> Page:
    page = Page(out, "Joint training: MNIST and Fashion-MNIST mixed (section 5.3)")
    page.paragraph(
        f"One network learns both datasets by {named_recipe(variant=report['variant'])}: {report['steps']:,} updates "
        f"of {report['recipe']}. Of each dataset it is trained on {report['trained_on']}. The images of both are put "
        "together and gone through in a new order each epoch. A datapoint's dataset in the memory is that of its "
        "image."
    )
    page.show(_accuracy_table(report), claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading("Attention across datasets")
    page.paragraph(
        "The paper sees attention from Fashion-MNIST to MNIST grow towards the late layers: at layer-0 the best images "
        "are mostly of the query's own class, at layer-2 some of the three best are of the other dataset, and the sum "
        "of the right class gains."
    )
    page.show(crossing_table(report["crossing"]), strongest_table(report["examples"]))
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, beside[name])
    show_hubs(page, report["hubs"])
    show_dates(page, report["dates"])
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _accuracy_table(report: Report) -> Table:
    names = list(report["accuracy"])
    measured = {"this training": report["accuracy"]}
    measured |= {f"variant: {name}": found for name, found in report["variants"].items()}
    rows = [(network, *(percent(found[name], ".2f") for name in names)) for network, found in measured.items()]
    if not report["variant"]:
        rows.append(("the paper's text", *(_TEXT[name] for name in names)))
        rows.append(("the paper's code, run again", *(_CODE[name] for name in names)))
    caption = (
        "Test accuracy. Each variant is trained with the same seed, changed in one thing, and not recorded; where all "
        "images are trained on, all of them give the mean and deviation that normalise them, too."
    )
    return Table("accuracy", caption, ("network", *names), rows)
