"""Puts the pages of the networks that people train into one document, with their figures beside it.

python -m dualform_studies.networks.document RUNS docs          RUNS/gpt2/report, RUNS/resnet18/report
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dualform.errors import DualformError, NotFound
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.markdown import moved
from dualform_studies.pages.study_list import commands_part, contents_part
from dualform_studies.pages.study_report import read_study
from dualform_studies.studies import NETWORKS

_HEAD = """\
# Networks that people train, asked

A GPT-2 trained by the Hugging Face Trainer and a ResNet-18 trained by Lightning, both with AdamW in bfloat16, recorded
in a few lines and asked from the command line. `make networks` runs both and writes this file; nothing in it is written
by hand.
"""


def write_networks(runs: Path, docs: Path) -> Path:
    """Write `docs/networks.md` from the reports that lie in `runs/NAME/report`.

    A study without a report there is named as not run. Raises NotFound where none has one, and what `read_study` and
    `GatheredFigures.take` raise; then nothing changes.
    """
    asked = {name: read_study(runs / name) for name in NETWORKS}
    reports = {name: report for name, report in asked.items() if report}
    if not reports:
        raise NotFound(
            f"{runs} holds no report of {' or '.join(NETWORKS)}.",
            hint="Name the folder of the runs, with NAME/report/report.json in it.",
        )
    figures = GatheredFigures("networks")
    parts = [_HEAD, commands_part(asked), contents_part(reports)]
    for name, report in reports.items():
        parts.append(moved(report.page, name, partial(_take, figures, name, report_folder(runs / name))))
    figures.copy(docs)
    document = docs / "networks.md"
    document.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return document


def _take(figures: GatheredFigures, part: str, folder: Path, name: str) -> str:
    return figures.take(part, folder / name)


@click.command()
@click.argument("runs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("docs", type=click.Path(path_type=Path, file_okay=False))
def main(runs: Path, docs: Path) -> None:
    """Write DOCS/networks.md and DOCS/networks/ from the studies run into RUNS/NAME."""
    try:
        click.echo(write_networks(runs, docs))
    except DualformError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
