"""The studies of a document: what each was told, and what stands in its page."""

from __future__ import annotations

from collections.abc import Mapping

from dualform_studies.pages.items import Table
from dualform_studies.pages.markdown import contents, table_markdown
from dualform_studies.pages.study_report import StudyReport


def commands_part(asked: Mapping[str, StudyReport | None]) -> str:
    """What each study was told, and what it took; None of one that was not run."""
    rows = [
        (name, f"`{report.command}`", report.threads, report.minutes, _gigabytes(report.peak_bytes))
        if report
        else (name, "not run", None, None, None)
        for name, report in asked.items()
    ]
    caption = (
        "The studies; DATA and RUN are folders of the reader's own. Minutes are wall-clock time on so many threads, "
        "whatever else the machine was doing; memory is the most that the study's process held at any time."
    )
    columns = ("study", "command", "threads", "minutes", "memory (GB)")
    return f"## Commands\n\n{table_markdown(Table('commands', caption, columns, rows))}"


def _gigabytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 1e9:.1f}"


def contents_part(reports: Mapping[str, StudyReport]) -> str:
    """Links to each page, and to what stands in it."""
    lines = [line for name, report in reports.items() for line in contents(report.page, name)]
    return "\n".join(["## Contents", "", *lines])
