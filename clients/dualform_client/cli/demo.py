"""dualform demo: the whole path, from a training to answers over gRPC."""

from __future__ import annotations

from pathlib import Path

import click

from dualform.extras import require_studies
from dualform_client.cli.options import json_option
from dualform_client.cli.progress import LOADING, progress_or_lines
from dualform_client.cli.report import print_report

_FOLDER = click.Path(path_type=Path)


@click.command()
@click.option("--out", type=_FOLDER, default=Path("runs/demo"), show_default=True, help="Folder for the memory.")
@json_option
def demo(out: Path, as_json: bool) -> None:
    """Record a small training, serve it, and ask it over gRPC.

    It trains on scikit-learn's digits, which need no download.

    \b
    Example:
      dualform demo --out runs/demo
    """
    require_studies()
    with progress_or_lines() as progress:
        progress(LOADING, 0, 1)
        from dualform_studies.demo import run_demo

        progress(LOADING, 1, 1)
        report = run_demo(out, progress)
    print_report(report, out, as_json)
