"""The command line: prepares the data, measures each section in its own process, writes the results."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from datetime import date
from pathlib import Path
from typing import Any

import click

from benchmarks import document
from benchmarks.data import GeneratedKeys, prepare
from benchmarks.harness import OURS, QUICK, SECTIONS, Plan, Section, apart, measured
from benchmarks.peers import PACKAGES
from dualform_studies.report import describe_machine, versions_of


@click.command(help="Measure the cost of questions and recording, and other packages.")
@click.option("--quick", "is_quick", is_flag=True, help="Two minutes: an eighth of the slots.")
@click.option(
    "--data",
    "images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="DUALFORM_DATA",
    help="Folder with mnist/ and fashion-mnist/, for the training that is recorded. [env: DUALFORM_DATA]",
)
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="This section; may be repeated.")
@click.option("--backend", help="Of dualform; by default what it picks itself.")
@click.option("--scratch", type=click.Path(path_type=Path), help="Where scratch data go (8 GB); removed at the end.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/results"),
    help="Folder of benchmarks.json, the page and its pictures. [docs/results]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/bench/report.md"),
    help="File for every table. [build/bench/report.md]",
)
@click.option("--again", is_flag=True, help="Measure nothing: write page and report again from benchmarks.json.")
def main(
    is_quick: bool,
    images: Path | None,
    only: tuple[str, ...],
    backend: str | None,
    scratch: Path | None,
    out: Path,
    report: Path,
    again: bool,
) -> None:
    if again:
        document.write(out, report, _read(out))
        return
    with tempfile.TemporaryDirectory(prefix="dualform-bench-", dir=scratch) as folder:
        plan = Plan(Path(folder), images=images, backend=backend, **(QUICK if is_quick else {}))
        click.echo(f"preparing {plan.slots:,} slots")
        prepare(plan)
        found = {name: _section(plan, name) for name in SECTIONS if name in only or not only}
        _write(out, report, plan, found)
    wrong = [
        (name, who)
        for name, section in found.items()
        for row in section.rows
        for who, cell in row.cells.items()
        if cell.wrong
    ]
    for name, who in wrong:
        click.echo(f"{name}: an answer of {who} was wrong, see {report}", err=True)
    if any(who.startswith(OURS) for _, who in wrong):
        raise click.ClickException("dualform gave a wrong answer.")
    if any(not section.rows for section in found.values()):
        raise click.ClickException("a section failed.")


def _read(out: Path) -> dict[str, Any]:
    """The run that was written last. Raises UsageError if there is no file."""
    path = out / "benchmarks.json"
    if not path.exists():
        raise click.UsageError(f"There is no {path} to write the page from.")
    run: dict[str, Any] = json.loads(path.read_text())
    return run


def _section(plan: Plan, name: str) -> Section:
    """The section, measured in its own process. If that fails, it has a note and no rows."""
    click.echo(f"{name}: {SECTIONS[name][1]} …", nl=False)
    began = time.monotonic()
    try:
        # Peers log and draw progress bars.
        found = apart(measured, name, plan, RUST_LOG="error", TQDM_DISABLE="1")
    except Exception as error:  # the other sections go on
        traceback.print_exception(error)
        note = f"This section failed: {type(error).__name__}: {error}"
        found = Section(name, SECTIONS[name][1], notes=[note], date=date.today().isoformat())
    click.echo(f" {time.monotonic() - began:.0f} s")
    return found


def alike(earlier: dict[str, Any], run: dict[str, Any]) -> bool:
    """Whether figures of both may be on one page: the same size, data, machine and versions.

    A package that is missing now, as peers are that only other sections ask, tells nothing of the earlier figures.
    """
    before, now = earlier["versions"], run["versions"]
    same = all(earlier.get(name) == value for name, value in run.items() if name != "versions")
    return same and all(before[name] == now[name] for name in before.keys() & now.keys())


def _write(out: Path, report: Path, plan: Plan, found: dict[str, Section]) -> None:
    """Write the run; sections that this run left out stay as an earlier run of the same size wrote them."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "benchmarks.json"
    run: dict[str, Any] = {
        "quick": plan.quick,
        "slots": plan.slots,
        "backend": plan.backend or "automatic",
        "data": GeneratedKeys.origin,
        "machine": describe_machine(),
        "versions": versions_of(PACKAGES),
    }
    earlier = _read(out) if path.exists() else {}
    kept = earlier["sections"] if earlier and alike(earlier, run) else {}
    if kept:
        run["versions"] = earlier["versions"] | run["versions"]
    sections = {**kept, **{name: section.to_json() for name, section in found.items()}}
    run["date"] = date.today().isoformat()
    run["sections"] = {name: sections[name] for name in SECTIONS if name in sections}
    path.write_text(json.dumps(run, indent=1) + "\n")
    document.write(out, report, run)


if __name__ == "__main__":
    main()
