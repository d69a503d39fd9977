"""The commands demo and study, and how their reports are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dualform.extras import require_studies
from dualform_client.cli.help import command, complete_study
from dualform_client.cli.options import FOLDER
from dualform_client.cli.printing import LOADING, Report, Table, progress_bars

_SHOWN_ROWS = 24
"""Rows of a table that are printed; the page has all."""


@command()
@click.option(
    "--out", type=FOLDER, metavar="DIR", default=Path("runs/demo"), show_default=True, help="Write the memory here."
)
def demo(out: Path) -> Report:
    """Record a small training, serve it, and ask it.

    It trains on scikit-learn's digits, which need no download, and asks over
    gRPC.

    \b
    Example:
      dualform demo --out runs/demo
    """
    require_studies()
    with progress_bars(lines=True) as progress:
        assert progress is not None
        progress(LOADING, 0, 1)
        from dualform_studies.demo import run_demo

        progress(LOADING, 1, 1)
        report = run_demo(out, progress)
    return _report(report, out)


@command()
@click.argument("name", required=False, shell_complete=complete_study)
@click.option("--data", type=FOLDER, metavar="DIR", show_default="download", help="Read the datasets here.")
@click.option("--out", type=FOLDER, metavar="RUN", help="Write memory and report here; NAME needs it.")
@click.option("--steps", type=int, metavar="N", show_default="the study's own", help="Train for N updates.")
@click.option("--seed", type=int, metavar="N", show_default="0", help="Seed every draw.")
@click.option("--runs", type=int, metavar="N", show_default="the study's own", help="Average over N trainings.")
@click.option("--preset", metavar="laptop|paper", show_default="laptop", help="aesop, wikitext2: set sizes.")
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    show_default="the paper's",
    help="aesop, wikitext2: ask by TEXT; repeatable.",
)
@click.option("--rerun", is_flag=True, help="aesop, wikitext2: store no keys, train twice.")
@click.option("--dry-run", is_flag=True, help="aesop, wikitext2: predict sizes, train nothing.")
def study(name: str | None, **options: Any) -> Report:
    """Run a study of the paper: training, figures, tables.

    Without NAME, list the studies.

    \b
    Examples:
      dualform study
      dualform study continual --data data --out runs/continual
    """
    if name is None:
        from dualform_studies.study_names import STUDY_NAMES

        table = Table("dualform study NAME --out RUN", ["study", "what it is"], STUDY_NAMES.items())
        return Report({"studies": STUDY_NAMES}, [table])
    if options["out"] is None:
        raise click.MissingParameter(param_hint="'--out'", param_type="option", ctx=click.get_current_context())
    require_studies()
    with progress_bars(lines=True) as progress:
        assert progress is not None
        progress(LOADING, 0, 1)
        from dualform_studies.assignment import Assignment
        from dualform_studies.studies import run_study

        progress(LOADING, 1, 1)
        report = run_study(name, Assignment(progress=progress, **options))
    return _report(report, options["out"])


def _report(report: dict[str, Any], out: Path) -> Report:
    """The tables and the place of the page. `out`: a memory, or a folder of memories."""
    shown = list[str | Table]()
    for table in report["tables"]:
        caption, rows = table["caption"], table["rows"]
        if len(rows) > _SHOWN_ROWS:
            caption, rows = f"{caption} The first {_SHOWN_ROWS} of {len(rows):,} rows:", rows[:_SHOWN_ROWS]
        shown.append(Table(caption, table["columns"], rows))
    index = out / "report" / "index.html"
    if index.is_file() and not report.get("dry_run"):
        from dualform.store.manifest import FILE

        memories = [out] if (out / FILE).is_file() else sorted(path.parent for path in out.glob(f"*/{FILE}"))
        shown.append(f"Figures and tables are in {index}.")
        shown += [f"Ask the memory: dualform info {memory}" for memory in memories]
    return Report(report, shown)
