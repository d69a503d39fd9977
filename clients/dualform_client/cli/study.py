"""dualform study: a study of the paper, or of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dualform.extras import require_studies
from dualform_client.cli.options import json_option
from dualform_client.cli.progress import progress_bars
from dualform_client.cli.report import print_report

_FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("name")
@click.option("--data", type=_FOLDER, help="Folder of the datasets. Default: they are downloaded.")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the memory and the report.")
@click.option("--steps", type=int, help="Updates to train for. Default: the study's own number.")
@click.option("--seed", type=int, help="Seed of every draw. Default: 0.")
@click.option(
    "--runs",
    type=int,
    help="Trainings to take a mean over, where a study has several. Default: the study's own number.",
)
@click.option(
    "--preset", metavar="laptop|paper", help="aesop, wikitext2: sizes of network and training. Default: laptop."
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="aesop, wikitext2: a text to ask about; repeatable. Default: the paper's.",
)
@click.option("--replay", is_flag=True, help="aesop, wikitext2: store no keys, and train twice.")
@click.option("--dry-run", is_flag=True, help="aesop, wikitext2: tell slots, bytes and seconds, and train nothing.")
@click.option("--quick", is_flag=True, help="attribution: less of everything, for a look in minutes.")
@json_option
def study(name: str, as_json: bool, **options: Any) -> None:
    """Run a study of the paper: training, figures, tables.

    A wrong NAME lists those that exist.

    \b
    Example:
      dualform study continual --data data --out runs/continual
      dualform study attribution --data data --out runs/attribution --quick
      dualform study aesop --data data --out runs/aesop --prompt "the Fox and the"
    """
    require_studies()
    from dualform_studies.assignment import Assignment
    from dualform_studies.studies import run_study

    with progress_bars() as progress:
        report = run_study(name, Assignment(progress=progress, **options))
    print_report(report, options["out"], as_json)
