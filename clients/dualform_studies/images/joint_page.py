"""The page of the joint study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dualform_studies.certificates import certificate_table
from dualform_studies.images.claims.crossing import crossing_table
from dualform_studies.images.claims.page import show_dates, show_hubs, show_prevalence
from dualform_studies.images.example import PaperFigures, show_example
from dualform_studies.images.tables import strongest_table
from dualform_studies.pages.claims import Beside, Claim, claims_table
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page

_TEXT = {"mnist": "97 %", "fashion-mnist": "87 %"}
_CODE = {"mnist": "96.1 %", "fashion-mnist": "87.0 %"}
"""Accuracies: those that section 5.3 names, and those that its code gave when it was run again."""


def beside_paper(accuracy: Mapping[str, float]) -> Iterator[Beside]:
    for name, reached in accuracy.items():
        yield Beside(f"accuracy on {name}", f"{100 * reached:.1f} %", _TEXT[name], _CODE[name])


def joint_page(out: Path, report: Report, beside: Mapping[str, PaperFigures]) -> Page:
    page = Page(out, "Joint training: MNIST and Fashion-MNIST mixed (section 5.3)")
    page.paragraph(
        f"One network learns both datasets by the recipe of the paper's code: {report['steps']:,} updates of "
        f"{report['recipe']}. Of each dataset it is trained on {report['trained_on']}. The images of both are put "
        "together and gone through in a new order each epoch. A datapoint's dataset in the memory is that of its "
        "image."
    )
    page.show(_accuracy_table(report), claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading("Attention across datasets")
    page.paragraph(
        "The paper sees attention from Fashion-MNIST to MNIST grow towards the late layers: at layer-0 the best "
        "datapoints are mostly the query's own, at layer-2 some are of the other dataset, and the sum of the right "
        "class gains."
    )
    page.show(crossing_table(report["crossing"]), strongest_table(report["examples"]))
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, beside[name])
    show_hubs(page, report["hubs"])
    show_dates(page, report["dates"])
    page.heading("The certificate")
    page.show(certificate_table(report["verify"]))
    return page


def _accuracy_table(report: Report) -> Table:
    names = list(report["accuracy"])
    measured = {"the recipe": report["accuracy"]}
    measured |= {f"variant: {name}": found for name, found in report["variants"].items()}
    rows = [(network, *(f"{100 * found[name]:.2f} %" for name in names)) for network, found in measured.items()]
    rows += [
        (network, *(said[name] for name in names))
        for network, said in (("the paper's text", _TEXT), ("the paper's code, run again", _CODE))
    ]
    caption = "Test accuracy. Each variant is trained with the recipe's seed, changed in one thing, and not recorded."
    return Table("accuracy", caption, ("network", *names), rows)
