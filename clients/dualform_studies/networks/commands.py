"""The commands that a study of a network asked its memory with."""

from __future__ import annotations

from dualform_studies.pages.folder import Report
from dualform_studies.pages.page import Page


def show_commands(page: Page, report: Report) -> None:
    page.heading("Asked by")
    page.paragraph("Everything on this page was answered by these commands; `--json` was given with each.")
    page.table("commands", "RUN is the memory.", ["command"], [[f"`{command}`"] for command in report["commands"]])
