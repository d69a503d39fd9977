"""The commands that a study of a network asked its memory with."""

from __future__ import annotations

from dualform_studies.pages.folder import Report
from dualform_studies.pages.page import Page


def show_commands(page: Page, report: Report) -> None:
    page.heading("Asked by")
    page.paragraph(
        "All that this page says of the memory was answered by these commands, each with `--json`. What the network "
        "itself predicts, whole or with something masked, was computed by running it in PyTorch, masked with the "
        "weights that `dualform weights` wrote."
    )
    page.table("commands", "RUN is the memory.", ["command"], [[f"`{command}`"] for command in report["commands"]])
