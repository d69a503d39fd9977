"""dualform study: a study of the paper, or of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dualform.extras import require_studies
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_table
from dualform_client.cli.progress import LOADING, progress_or_lines
from dualform_client.cli.report import print_report
from dualform_client.cli.suggestions import complete_study

_FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("name", required=False, shell_complete=complete_study)
@click.option("--data", type=_FOLDER, help="Folder of the datasets. Default: they are downloaded.")
@click.option("--out", type=_FOLDER, help="Folder for the memory and the report, which NAME needs. Default: none.")
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
@click.option("--rerun", is_flag=True, help="aesop, wikitext2: store no keys, and train twice.")
@click.option("--dry-run", is_flag=True, help="aesop, wikitext2: tell slots, bytes and seconds, and train nothing.")
@click.option("--quick", is_flag=True, help="attribution: less of everything, for a look in minutes.")
@json_option
def study(name: str | None, as_json: bool, **options: Any) -> None:
    """Run a study of the paper: training, figures, tables.

    Without NAME it lists the studies.

    \b
    Example:
      dualform study
      dualform study continual --data data --out runs/continual
      dualform study attribution --data data --out runs/attribution --quick
      dualform study aesop --data data --out runs/aesop --prompt "the Fox and the"
    """
    if name is None:
        _list_studies(as_json)
        return
    if options["out"] is None:
        raise click.MissingParameter(param_hint="'--out'", param_type="option", ctx=click.get_current_context())
    require_studies()
    with progress_or_lines() as progress:
        progress(LOADING, 0, 1)
        from dualform_studies.assignment import Assignment
        from dualform_studies.studies import run_study

        progress(LOADING, 1, 1)
        report = run_study(name, Assignment(progress=progress, **options))
    print_report(report, options["out"], as_json)


def _list_studies(as_json: bool) -> None:
    from dualform_studies.study_names import STUDY_NAMES

    if as_json:
        print_json({"studies": STUDY_NAMES})
        return
    print_table("dualform study NAME --out RUN", ["study", "what it is"], STUDY_NAMES.items())
