"""The page of the joint study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dualform_studies.certificates import certificate_table
from dualform_studies.images.crossing import crossing_table, strongest_table
from dualform_studies.images.example import PaperFigures, show_example
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page

PAPER_ACCURACY = {"mnist": "97 %", "fashion-mnist": "87 %"}


def joint_page(out: Path, report: Report, beside: Mapping[int, PaperFigures]) -> Page:
    page = Page(out, "Joint training: MNIST and Fashion-MNIST mixed (section 5.3)")
    page.paragraph(
        f"One network learns both datasets in {report['steps']:,} updates: {report['recipe']}. The training sets are "
        f"put together, {report['training_images']:,} images, and gone "
        "through in a new order each epoch; each image is normalised by the mean and deviation of its own dataset, and "
        "a datapoint's dataset in the memory is that of its image. Each figure is of the first Fashion-MNIST test "
        "image of its class that the network recognises."
    )
    page.show(_accuracy_table(report))
    page.heading("Attention across datasets")
    page.paragraph(
        "The paper sees attention from Fashion-MNIST to MNIST grow towards the late layers: at layer-0 the best "
        "datapoints are mostly the query's own, at layer-2 some are of the other dataset, and the sum of the right "
        "class gains."
    )
    page.show(crossing_table(report["crossing"]), strongest_table(report["examples"]))
    for label, example in report["examples"].items():
        show_example(page, example["name"], example, beside[int(label)])
    page.heading("The certificate")
    page.show(certificate_table(report["verify"]))
    return page


def _accuracy_table(report: Report) -> Table:
    rows = [("this memory's network", *(f"{100 * value:.2f} %" for value in report["accuracy"].values()))]
    rows += [
        (name, *(f"{100 * value:.2f} %" for value in found.values())) for name, found in report["variants"].items()
    ]
    rows.append(("the paper", *(PAPER_ACCURACY[name] for name in report["accuracy"])))
    caption = (
        "Test accuracy; below the network's own, that of networks trained otherwise in one thing that the paper leaves "
        "open, and not recorded."
    )
    return Table("accuracy", caption, ("network", *report["accuracy"]), rows)
