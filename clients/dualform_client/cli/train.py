"""dualform demo, study: trainings that record themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dualform.extras import require_studies
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_table
from dualform_client.cli.progress import progress_bars

_FOLDER = click.Path(path_type=Path)
_SHOWN_ROWS = 24
"""Of a table on a terminal; the page has all of them."""


@click.command()
@click.option("--out", type=_FOLDER, default=Path("runs/demo"), show_default=True, help="Folder for the memory.")
@json_option
def demo(out: Path, as_json: bool) -> None:
    """Records a small training on embedded data, serves it, and asks it everything over gRPC.

    \b
    Example:
      dualform demo --out runs/demo
    """
    require_studies()
    from dualform_studies.demo import run_demo

    with progress_bars() as progress:
        report = run_demo(out, progress)
    _print_report(report, out, as_json)


@click.command()
@click.argument("name")
@click.option("--data", type=_FOLDER, help="Folder of the datasets; they are downloaded where none is given.")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the memory and the report.")
@click.option("--steps", type=int, help="Updates, in place of the study's own number.")
@click.option("--seed", type=int, help="What every draw follows from; 0 where none is given.")
@click.option("--runs", type=int, help="Trainings to take a mean over, where a study has several.")
@click.option("--preset", metavar="laptop|paper", help="aesop, wikitext2: sizes of network and training.")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="aesop, wikitext2: a text to ask about.")
@click.option("--replay", is_flag=True, help="aesop, wikitext2: store no keys, train twice.")
@click.option("--dry-run", is_flag=True, help="aesop, wikitext2: only say slots, bytes and time.")
@json_option
def study(name: str, as_json: bool, **options: Any) -> None:
    """One of the paper's studies: training, figures, tables. A wrong NAME lists those that exist.

    \b
    Example:
      dualform study continual --data data --out runs/continual
      dualform study aesop --data data --out runs/aesop --prompt "the Fox and the"
    """
    require_studies()
    from dualform_studies.assignment import Assignment
    from dualform_studies.studies import run_study

    with progress_bars() as progress:
        report = run_study(name, Assignment(progress=progress, **options))
    _print_report(report, options["out"], as_json)


def _print_report(report: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for table in report["tables"]:
        caption, rows = table["caption"], table["rows"]
        if len(rows) > _SHOWN_ROWS:
            caption, rows = f"{caption} The first {_SHOWN_ROWS} of {len(rows):,} rows:", rows[:_SHOWN_ROWS]
        print_table(caption, table["columns"], rows)
    index = out / "report" / "index.html"
    if index.is_file() and not report.get("dry_run"):
        print_line(f"The memory is {out}; its figures and tables are shown in {index}.")
        print_line(f"Ask it: dualform info {out}")
