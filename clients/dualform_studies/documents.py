"""Pages of docs/results: a summary that people write, and below it what a command makes of reports.

write_page(docs / "results" / "reproduction.md", "The paper, reproduced", ["## Claims …"])
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dualform.errors import BadInput, NotFound

MARK = "<!-- Written by hand above this line, by a command below it. -->"


class Shown(NamedTuple):
    """A figure of a study's report on a page of results."""

    study: str
    png: Path
    caption: str

    def place(self, page: Path) -> str:
        """Where the page has its copy, relative to the page's folder."""
        return f"{page.stem}/{self.study}/{self.png.name}"


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
    page.parent.mkdir(parents=True, exist_ok=True)
    for part in shown:
        place = page.parent / part.place(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part.png, place)
    figure = "![A figure of {0.study}]({1})\n\n*{0.caption}*"
    below = (figure.format(part, part.place(page)) if isinstance(part, Shown) else part.strip() for part in parts)
    page.write_text("\n\n".join([above.strip(), MARK, *below]) + "\n", encoding="utf-8")
    return page
