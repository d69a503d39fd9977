"""dualform demo, study: trainings that record themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_table
from dualform_client.cli.progress import progress_bars

_FOLDER = click.Path(path_type=Path)


@click.command()
@click.option("--out", type=_FOLDER, default=Path("runs/demo"), show_default=True, help="Folder for the memory.")
@json_option
def demo(out: Path, as_json: bool) -> None:
    """Records a small training on embedded data, serves it, and asks it everything over gRPC.

    \b
    Example:
      dualform demo --out runs/demo
    """
    from dualform_studies.demo import run_demo

    with progress_bars() as progress:
        report = run_demo(out, progress)
    _print_report(report, out, as_json)


@click.command()
@click.argument("name")
@click.option("--data", type=_FOLDER, help="Folder of the data sets; they are downloaded where none is given.")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the memory and the report.")
@click.option("--steps", type=int, help="Updates, in place of the study's own number.")
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def study(name: str, data: Path | None, out: Path, steps: int | None, seed: int, as_json: bool) -> None:
    """One of the paper's studies: training, figures, tables. A wrong NAME lists those that exist.

    \b
    Example:
      dualform study continual --data data --out runs/continual
    """
    from dualform_studies.studies import run_study

    with progress_bars() as progress:
        report = run_study(name, data, out, steps, seed, progress)
    _print_report(report, out, as_json)


def _print_report(report: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    from dualform_studies.tables import report_tables

    for table in report_tables(report):
        print_table(*table)
    print_line(f"The memory is {out}, its figures and report.json lie in {out / 'report'}.")
    print_line(f"Ask it: dualform info {out}")
