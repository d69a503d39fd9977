"""Puts the pages of the networks that people train into one document, with their figures beside it.

python -m dualform_studies.networks.document RUNS docs          RUNS/gpt2/report, RUNS/resnet18/report
python -m dualform_studies.networks.document RUNS docs --again  … after drawing both pages anew from their report.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from dualform_studies.networks.gpt2.page import gpt2_page
from dualform_studies.networks.resnet18.page import resnet18_page
from dualform_studies.pages.document import document_command, page_parts, read_studies, write_document
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.study_list import commands_part, contents_part
from dualform_studies.pages.study_report import StudyReport
from dualform_studies.pages.words import listed
from dualform_studies.studies import NETWORKS

_PAGES = {"gpt2": gpt2_page, "resnet18": resnet18_page}


def write_networks(runs: Path, docs: Path, again: bool = False) -> Path:
    """Write `docs/networks.md` from the reports that lie in `runs/NAME/report`; with `again`, their own pages and
    figures are made anew before, from report.json alone.

    A study without a report there is named as not run. Raises what `read_studies` and `GatheredFigures.take` raise;
    then nothing in `docs` changes.
    """
    if again:
        _make_pages(runs)
    asked, reports = read_studies(runs, NETWORKS, " or ".join(NETWORKS))
    figures = GatheredFigures("networks")
    pages = [*page_parts(figures, runs, reports)]
    figures.copy(docs)
    return write_document(docs, "networks", [_head(reports), commands_part(asked), contents_part(reports), *pages])


def _make_pages(runs: Path) -> None:
    for name, page in _PAGES.items():
        path = report_folder(runs / name) / "report.json"
        if path.is_file():
            report = json.loads(path.read_text(encoding="utf-8"))
            page(runs / name, report).write(report)


def _head(reports: Mapping[str, StudyReport]) -> str:
    subjects = listed([report.subject for report in reports.values() if report.subject])
    return (
        "# Networks that people train, asked\n\n"
        f"Small networks, trained by AdamW on float32 weights under bfloat16 autocast: {subjects}. They were recorded "
        "in a few lines and asked from the command line. `make networks` trains them and writes this file; nothing in "
        "it is written by hand, and which of its wordings a finding takes follows from the figures."
    )


main = document_command(
    write_networks,
    "Write DOCS/networks.md and DOCS/networks/ from the studies run into RUNS/NAME.",
    [click.Option(["--again"], is_flag=True, help="Draw the pages of the studies anew, from their report.json.")],
)


if __name__ == "__main__":
    main()
