"""Puts the page of the study "attribution" into the document docs/attribution.md, with its figure beside it.

python -m dualform_studies.attribution.document RUNS docs          RUNS/attribution/report
python -m dualform_studies.attribution.document RUNS docs --again  … after drawing the page anew from its report.json
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dualform_studies.attribution.page import attribution_page
from dualform_studies.pages.document import document_command, page_parts, read_studies, write_document
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.study_list import commands_part, contents_part

_NAME = "attribution"
_HEAD = """\
# Ways to attribute, put to the test

Which training data made it say this? dualform's scores and those of other packages, of one and the same training,
beside what trainings without some of the data did. `make attribution` runs the study and writes this file; nothing in
it is written by hand. [Which question?](which-question.md) says what each of dualform's scores answers.
"""


def write_attribution(runs: Path, docs: Path, again: bool = False) -> Path:
    """Write `docs/attribution.md` from the report that lies in `runs/attribution/report`; with `again`, its page and
    figure are made anew before, from report.json alone.

    Raises what `read_studies` and `GatheredFigures.take` raise; then nothing in `docs` changes.
    """
    run = runs / _NAME
    path = report_folder(run) / "report.json"
    if again and path.is_file():
        report = json.loads(path.read_text(encoding="utf-8"))
        attribution_page(run, report).write(report)
    asked, reports = read_studies(runs, [_NAME], _NAME)
    figures = GatheredFigures(_NAME)
    pages = [*page_parts(figures, runs, reports)]
    figures.copy(docs)
    return write_document(docs, _NAME, [_HEAD, commands_part(asked), contents_part(reports), *pages])


main = document_command(
    write_attribution,
    "Write DOCS/attribution.md and DOCS/attribution/ from the study run into RUNS/attribution.",
    [click.Option(["--again"], is_flag=True, help="Draw the page of the study anew, from its report.json.")],
)


if __name__ == "__main__":
    main()
