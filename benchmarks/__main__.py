"""The command line: prepares the data, runs each section in a process of its own, writes what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import click

from benchmarks import document, machine
from benchmarks.data import origin, prepare
from benchmarks.plan import Plan, full, quick
from benchmarks.result import OURS, Cell, Row, Section
from benchmarks.sections import SECTIONS
from dualform_studies.pages.machine import describe_machine

STUDY = Path("runs/continual")


@click.command(help="Measure what questions cost, beside what else could answer them.")
@click.option("--quick", "is_quick", is_flag=True, help="Two minutes: an eighth of the slots.")
@click.option(
    "--study",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"A recorded continual study; {STUDY} if it exists, else generated keys.",
)
@click.option("--generated", is_flag=True, help="Generated keys, even where a study is at hand.")
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
    study: Path | None,
    generated: bool,
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
    if study is None and not generated and (STUDY / "memory.json").exists():
        study = STUDY
    chosen = [name for name in SECTIONS if name in only or not only]
    with tempfile.TemporaryDirectory(prefix="dualform-bench-", dir=scratch) as folder:
        size = quick if is_quick else full
        plan = size(Path(folder), None if generated else study, images, backend)
        click.echo(f"preparing {plan.slots:,} slots")
        prepare(plan)
        plan.write(plan.folder / "plan.json")
        found = {name: _section(plan, name) for name in chosen}
        _write(out, report, plan, found)
    for name, section in found.items():
        if any(cell.wrong for row in section.rows for cell in row.cells.values()):
            click.echo(f"{name}: an answer was wrong, see {report}", err=True)
    if any(cell.wrong for section in found.values() for row in section.rows for cell in _ours(row)):
        raise click.ClickException("dualform gave a wrong answer.")
    if any(not section.rows for section in found.values()):
        raise click.ClickException("a section failed.")


def _read(out: Path) -> dict[str, Any]:
    """The run that was written last. Raises UsageError where there is none."""
    path = out / "benchmarks.json"
    if not path.exists():
        raise click.UsageError(f"There is no {path} to write the page from.")
    run: dict[str, Any] = json.loads(path.read_text())
    return run


def _ours(row: Row) -> list[Cell]:
    return [cell for name, cell in row.cells.items() if name.startswith(OURS)]


def _section(plan: Plan, name: str) -> Section:
    """What a process of its own found; a section without rows, with a note, where that process failed."""
    click.echo(f"{name}: {SECTIONS[name]} …", nl=False)
    began, out = time.monotonic(), plan.folder / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.section_process", name, str(plan.folder / "plan.json"), str(out)]
    # Peers log and draw progress bars; what went wrong is told below.
    environment = {**os.environ, "RUST_LOG": "error", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, env=environment)
    click.echo(f" {time.monotonic() - began:.0f} s")
    if done.returncode == 0:
        return Section.from_json(json.loads(out.read_text()))
    last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
    click.echo(done.stderr, err=True)
    return Section(name, SECTIONS[name], notes=[f"This section failed: {last}"], date=date.today().isoformat())


def _alike(earlier: dict[str, Any], run: dict[str, Any]) -> bool:
    """Whether figures of both may stand on one page: the same size, data, machine and versions.

    A package that is missing now, as peers are that only other sections ask, tells nothing of the earlier figures.
    """
    before, now = earlier["versions"], run["versions"]
    same = all(earlier.get(name) == value for name, value in run.items() if name != "versions")
    return same and all(before[name] == now[name] for name in before.keys() & now.keys())


def _write(out: Path, report: Path, plan: Plan, found: dict[str, Section]) -> None:
    """Write the run; sections that this run left out stay as an earlier run of the same size and data wrote them."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "benchmarks.json"
    run: dict[str, Any] = {
        "quick": plan.quick,
        "slots": plan.slots,
        "backend": plan.backend or "automatic",
        "data": origin(plan),
        "machine": describe_machine(),
        "versions": machine.versions(),
    }
    earlier = _read(out) if path.exists() else {}
    kept = earlier["sections"] if earlier and _alike(earlier, run) else {}
    if kept:
        run["versions"] = earlier["versions"] | run["versions"]
    sections = {**kept, **{name: section.to_json() for name, section in found.items()}}
    run["date"] = date.today().isoformat()
    run["sections"] = {name: sections[name] for name in SECTIONS if name in sections}
    path.write_text(json.dumps(run, indent=1) + "\n")
    document.write(out, report, run)


if __name__ == "__main__":
    main()
