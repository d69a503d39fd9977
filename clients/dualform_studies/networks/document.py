"""The page of results on the networks that people train: what the reports of gpt2 and resnet18 find.

python -m dualform_studies.networks.document RUNS docs          RUNS/gpt2/report, RUNS/resnet18/report
"""

from __future__ import annotations

import json
from pathlib import Path

from dualform_studies.networks.gpt2.page import gpt2_page
from dualform_studies.networks.resnet18.page import resnet18_page
from dualform_studies.pages.document import (
    RESULTS,
    Captions,
    commands_part,
    document_command,
    figures_of,
    read_studies,
    write_page,
)
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.items import Heading, Paragraph
from dualform_studies.pages.page import Page
from dualform_studies.studies import NETWORKS

_PAGES = {"gpt2": gpt2_page, "resnet18": resnet18_page}
_FINDING = "Finding: "
_EXAMPLE = "drawn at random: "
"""In the headings of single predictions, which only the report has."""
_HEAD = """\
`make networks` trains the networks and writes all that follows from their reports. Each report has every figure and
table, layer by layer, and single predictions: `runs/NAME/report/index.html`.
"""
_FIGURES: Captions = {
    "gpt2": {
        "likeness": "GPT-2: how often the training token that a layer attends to most is the token the network read, "
        "has the same place in its passage, and precedes the predicted token. Dotted: chance.",
    },
    "resnet18": {
        "classes": "ResNet-18: for how many test images the class that gets most attention is the one the network "
        "predicts, and the true one, from the first layer to the last. Dotted: chance.",
    },
}


def write_networks(runs: Path, docs: Path) -> Path:
    """Write `docs/results/networks.md` from `runs/NAME/report/report.json`; the reports are drawn again first.

    A study without a report there is named as not run. Raises what `read_studies` and `write_page` raise.
    """
    asked, reports = read_studies(runs, NETWORKS, " or ".join(NETWORKS))
    parts = [_HEAD]
    for name in reports:
        report = json.loads((report_folder(runs / name) / "report.json").read_text(encoding="utf-8"))
        page = _PAGES[name](runs / name, report)
        page.write(report)
        parts.append(_findings(page, report["subject"]))
    figures = figures_of(runs, reports, _FIGURES)
    return write_page(
        docs / RESULTS / "networks.md", "Two networks that people train", [*parts, *figures, commands_part(asked)]
    )


def _findings(page: Page, subject: str) -> str:
    """The paragraphs that a report calls findings, each with the heading it is below."""
    parts, heading = [f"## {page.title}", f"{subject[0].upper()}{subject[1:]}."], ""
    for item in page.items:
        if isinstance(item, Heading):
            heading = item.text
        elif isinstance(item, Paragraph) and item.text.startswith(_FINDING) and _EXAMPLE not in heading:
            found = item.text.removeprefix(_FINDING)
            parts.append(f"**{heading}.** {found[0].upper()}{found[1:]}")
    return "\n\n".join(parts)


main = document_command(write_networks, "Write DOCS/results/networks.md from the studies run into RUNS/NAME.")


if __name__ == "__main__":
    main()
