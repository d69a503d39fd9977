"""Cells of a table as they are read, and headings as links name them."""

from __future__ import annotations

import re


def anchor(heading: str) -> str:
    """What a link to a heading of a page says after its #."""
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


def in_words(cell: str | int | float | None) -> str:
    """Whole numbers with thousands apart, others with up to six digits, nothing as a hyphen."""
    if cell is None:
        return "-"
    if isinstance(cell, bool | str):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.6g}"
