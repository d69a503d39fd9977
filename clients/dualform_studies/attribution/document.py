"""The page of results of the study "attribution": what each way predicts of trainings without some of the images.

python -m dualform_studies.attribution.document RUNS docs          RUNS/attribution/report
"""

from __future__ import annotations

import json
from pathlib import Path

from dualform_studies.attribution.findings import Measure, leaders, measures
from dualform_studies.attribution.page import attribution_page
from dualform_studies.pages.document import (
    RESULTS,
    Captions,
    Shown,
    commands_part,
    document_command,
    figures_of,
    read_studies,
    write_page,
)
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.markdown import table_markdown
from dualform_studies.pages.words import listed

_NAME = "attribution"
_ABSOLUTE = ", abs"
_HEAD = """\
`make attribution` runs the study and writes all that follows from its report. The report has every interval, the
settings of each way and what each is good for: `runs/attribution/report/index.html`.
"""
_FIGURES: Captions = {
    _NAME: {"ways": "Correlation of each way's scores with trainings without some of the images, with 95 % intervals."}
}


def write_attribution(runs: Path, docs: Path) -> Path:
    """Write `docs/results/attribution.md` from `runs/attribution/report/report.json`; the report is drawn again first.

    Raises what `read_studies` and `write_page` raise.
    """
    asked, reports = read_studies(runs, [_NAME], _NAME)
    run = runs / _NAME
    report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    attribution_page(run, report).write(report)
    missing = f"Not installed, so not run: {listed(report['missing'])}." if report["missing"] else ""
    tables = [table_markdown(table, folded=False) for table in (leaders(report), _ways(report))]
    parts: list[str | Shown] = [_HEAD, missing, "## Results", *tables]
    parts += [*figures_of(runs, reports, _FIGURES), commands_part(asked)]
    return write_page(docs / RESULTS / f"{_NAME}.md", "Attribution methods compared", parts)


def _ways(report: Report) -> Table:
    """Every way by every measure, the first of them with its interval."""
    measured = measures(report)
    rows: list[list[Cell]] = [
        [name, *(_cell(one, way, interval=not at) for at, one in enumerate(measured)), f"{way['seconds']:.1f}"]
        for name, way in report["ways"].items()
        if not name.endswith(_ABSOLUTE)
    ]
    caption = (
        "LDS and leave one out are correlations: more is better. Of removals fewer are better. Wrong labels: 0.5 is "
        "chance, and 1 finds them all first. Seconds are for all scores and the trainings that a way needs, without "
        "the recording. Absolute attention is left out: no score is negative here, so it equals the dot product."
    )
    return Table("ways", caption, ("way", *(one.words for one in measured), "seconds"), rows)


def _cell(measure: Measure, way: Report, *, interval: bool) -> Cell:
    found = measure.of(way)
    if found is None:
        return None
    value, low, high = (f"{number:z{'.0f' if measure.least else '.3f'}}" for number in found)
    return f"{value} [{low}, {high}]" if interval else value


main = document_command(
    write_attribution, "Write DOCS/results/attribution.md from the study run into RUNS/attribution."
)


if __name__ == "__main__":
    main()
