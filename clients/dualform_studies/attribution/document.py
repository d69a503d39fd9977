"""docs/results/attribution.md from the report of the study "attribution".

python -m dualform_studies.attribution.document RUNS docs          RUNS/attribution/report
"""

from __future__ import annotations

import json
from pathlib import Path

from dualform_studies.attribution.page import CAPTION, attribution_page, recipe_words, settings, table
from dualform_studies.pages.document import (
    RESULTS,
    Shown,
    commands_part,
    document_command,
    figures_of,
    read_studies,
    write_page,
)
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.markdown import table_markdown

_NAME = "attribution"


def write_attribution(runs: Path, docs: Path) -> Path:
    """Write `docs/results/attribution.md` from `runs/attribution/report/report.json`; the report is drawn again first.

    Raises what `read_studies` and `write_page` raise.
    """
    asked, reports = read_studies(runs, [_NAME], _NAME)
    report = json.loads((report_folder(runs / _NAME) / "report.json").read_text(encoding="utf-8"))
    attribution_page(runs / _NAME, report).write(report)
    parts: list[str | Shown] = ["`make attribution` runs the study and writes all that follows."]
    parts += ["## Settings", *settings(report), "## Results", *figures_of(runs, reports, {_NAME: {"ways": CAPTION}})]
    for name, recipe in report["recipes"].items():
        parts += [f"### {name}", *recipe_words(recipe), table_markdown(table(name, recipe), folded=False)]
    return write_page(
        docs / RESULTS / f"{_NAME}.md", "Which score predicts a retraining?", [*parts, commands_part(asked)]
    )


main = document_command(
    write_attribution, "Write DOCS/results/attribution.md from the study run into RUNS/attribution."
)


if __name__ == "__main__":
    main()
