"""Cells of a table as they are read."""

from __future__ import annotations


def in_words(cell: str | int | float | None) -> str:
    """Whole numbers with thousands apart, others with up to six digits, nothing as a hyphen."""
    if cell is None:
        return "-"
    if isinstance(cell, bool | str):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.6g}"
