"""One document of the reports of several studies, with their figures beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from dualform.errors import DualformError, NotFound
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.markdown import moved
from dualform_studies.pages.study_report import StudyReport, read_study


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
            f"{runs} holds no report of {of_what}.",
            hint="Name the folder of the runs, with NAME/report/report.json in it.",
        )
    return asked, reports


def page_parts(figures: GatheredFigures, runs: Path, reports: Mapping[str, StudyReport]) -> Iterator[str]:
    """The pages of the studies, as parts of a document that shows their figures where they are gathered."""

    def take(name: str, figure: str) -> str:
        return figures.take(name, report_folder(runs / name) / figure)

    for name, report in reports.items():
        yield moved(report.page, name, partial(take, name))


def write_document(docs: Path, name: str, parts: Sequence[str]) -> Path:
    """Write `docs/NAME.md`; parts that are empty are left out."""
    document = docs / f"{name}.md"
    document.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return document


def document_command(write: Callable[..., Path], says: str, options: Sequence[click.Option] = ()) -> click.Command:
    """The command line of `write(runs, docs)`, which gets the values of further `options` by their names."""

    def run(runs: Path, docs: Path, **further: bool) -> None:
        try:
            click.echo(write(runs, docs, **further))
        except DualformError as error:
            raise click.ClickException(str(error)) from error

    folder = partial(click.Path, path_type=Path, file_okay=False)
    arguments = [click.Argument(["runs"], type=folder(exists=True)), click.Argument(["docs"], type=folder())]
    return click.Command("document", callback=run, params=[*arguments, *options], help=says)
