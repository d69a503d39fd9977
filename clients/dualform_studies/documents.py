"""Pages of docs/results, made from the reports that studies left.

A page of docs/results: a summary that people write, and below it what a command makes of reports.

write_page(docs / "results" / "reproduction.md", "The paper, reproduced", ["## Claims …"])
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click

from dualform.errors import BadInput, Damaged, DualformError, NotFound
from dualform_studies.claims import VERDICTS, Beside, Claim
from dualform_studies.report import Cell, Report, Table, report_folder, table_markdown


class OftenFound(NamedTuple):
    """A training image that is among the best of many test images."""

    dataset: str
    sample: int
    """Its row in the file of its dataset."""
    label: int
    share: float
    """Of the test images, from 0 to 1."""


@dataclass(frozen=True)
class StudyReport:
    command: str
    """The command line that made it."""
    claims: tuple[Claim, ...]
    beside_paper: tuple[Beside, ...]
    threads: str
    """How many torch computed on."""
    minutes: int | None
    """How long the study took, rounded up; None where it does not say."""
    often_found: Mapping[str, Sequence[OftenFound]] | None
    """By layer, of a study that looks for hubs; None of others."""
    digests: Mapping[str, tuple[str, str]]
    """By prompt, of a study of text: those of its best datapoints and of its sums."""
    peak_bytes: int | None
    """The most memory that the study's process held; None where it does not say."""
    disk_bytes: int | None
    """Of the memory; None where none is kept."""


def read_study(run: Path) -> StudyReport | None:
    """The report in `run/report`, None where there is none.

    Raises Damaged, naming the file, for a report that is cut short or lacks something.
    """
    path = report_folder(run) / "report.json"
    if not path.is_file():
        return None
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(f"{path} is not a complete report of a study: {why}.", hint="Run its study again.") from error


def _read(report: Report) -> StudyReport:
    if not isinstance(report, dict):
        raise TypeError("it is not a JSON object")
    claims = tuple(Claim(**claim) for claim in report.get("claims", ()))
    for claim in claims:
        if claim.verdict not in VERDICTS:
            raise ValueError(f"{claim.verdict!r} is not a verdict")
    seconds, prompts = report.get("seconds", {}).get("all"), report.get("prompts", ())
    return StudyReport(
        command=report["command"],
        claims=claims,
        beside_paper=tuple(Beside(**row) for row in report.get("beside_paper", ())),
        threads=report["machine"]["threads"],
        minutes=None if seconds is None else ceil(seconds / 60),
        often_found=_often_found(report["hubs"]) if "hubs" in report else None,
        digests={one["name"]: (one["digests"]["top_k"], one["digests"]["sums"]) for one in prompts},
        peak_bytes=report.get("peak_bytes"),
        disk_bytes=report.get("disk_bytes"),
    )


def _often_found(hubs: Report) -> dict[str, list[OftenFound]]:
    return {
        layer: [OftenFound(one["dataset"], one["sample"], one["label"], one["weight"]) for one in found["often"]]
        for layer, found in hubs.items()
    }


RESULTS = "results"
"""The folder of these pages in docs."""
MARK = "<!-- Written by hand above this line, by a command below it. -->"

Captions: TypeAlias = Mapping[str, Mapping[str, str]]
"""By study and by the name of a figure of its report."""


class Shown(NamedTuple):
    """A figure of a study's report on a page of results."""

    study: str
    png: Path
    caption: str


def write_page(page: Path, title: str, parts: Iterable[str | Shown]) -> Path:
    """Write `parts` below the line MARK of a page and keep the text above it; empty parts are left out.

    A new page has its title above the line. Figures are copied into the folder that is named as the page, in place of
    all that it has. Raises BadInput for a page without that line, and NotFound for a figure that is not there; then
    nothing changes.
    """
    above = f"# {title}"
    if page.exists():
        above, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
        if not mark:
            raise BadInput(f"{page} has no line {MARK}", hint="Put this line below the text that is to stay.")
    parts = [part for part in parts if part]
    shown = [part for part in parts if isinstance(part, Shown)]
    for part in shown:
        if not part.png.is_file():
            raise NotFound(f"The figure {part.png} is missing.", hint="Run its study again.")
    shutil.rmtree(page.with_suffix(""), ignore_errors=True)
    for part in shown:
        place = page.parent / _place(page, part)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part.png, place)
    page.parent.mkdir(parents=True, exist_ok=True)
    below = (_figure(page, part) if isinstance(part, Shown) else part.strip() for part in parts)
    page.write_text("\n\n".join([above.strip(), MARK, *below]) + "\n", encoding="utf-8")
    return page


def _figure(page: Path, figure: Shown) -> str:
    return f"![A figure of {figure.study}]({_place(page, figure)})\n\n*{figure.caption}*"


def _place(page: Path, figure: Shown) -> str:
    return f"{page.stem}/{figure.study}/{figure.png.name}"


def read_studies(
    runs: Path, names: Iterable[str], of_what: str
) -> tuple[dict[str, StudyReport | None], dict[str, StudyReport]]:
    """By name, the reports in `runs/NAME/report`, None where a study has none; and those that there are.

    Raises NotFound where none has one, which then is a report `of_what`, and what `read_study` raises.
    """
    asked = {name: read_study(runs / name) for name in names}
    reports = {name: report for name, report in asked.items() if report}
    if not reports:
        raise NotFound(
            f"{runs} has no report of {of_what}.",
            hint="Pass the folder of the runs, with NAME/report/report.json in it.",
        )
    return asked, reports


def figures_of(runs: Path, studies: Iterable[str], captions: Captions) -> Iterator[Shown]:
    for study in studies:
        for name, caption in captions.get(study, {}).items():
            yield Shown(study, report_folder(runs / study) / f"{name}.png", caption)


def commands_part(asked: Mapping[str, StudyReport | None]) -> str:
    """The command of each study and what it took; None of one that was not run."""
    rows: list[tuple[Cell, ...]] = [
        (name, f"`{report.command}`", report.threads, report.minutes, _gigabytes(report.peak_bytes))
        if report
        else (name, "not run", None, None, None)
        for name, report in asked.items()
    ]
    caption = (
        "DATA is the folder of the datasets, RUN an empty folder. Minutes are wall-clock time on a machine that did "
        "other things, too."
    )
    columns: tuple[str, ...] = ("study", "command", "threads", "minutes", "RAM (GB)")
    if any(report and report.peak_bytes for report in asked.values()):
        caption += " RAM is the most that the process held."
    else:
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    return f"## Commands\n\n{table_markdown(Table('commands', caption, columns, rows))}"


def _gigabytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 1e9:.1f}"


def document_command(write: Callable[[Path, Path], Path], says: str) -> click.Command:
    """The command line of `write(runs, docs)`."""

    def run(runs: Path, docs: Path) -> None:
        try:
            click.echo(write(runs, docs))
        except DualformError as error:
            raise click.ClickException(str(error)) from error

    folder = partial(click.Path, path_type=Path, file_okay=False)
    arguments: list[click.Parameter] = [
        click.Argument(["runs"], type=folder(exists=True)),
        click.Argument(["docs"], type=folder()),
    ]
    return click.Command("document", callback=run, params=arguments, help=says)
