"""How a table shows grades."""

from __future__ import annotations

from typing import Any

from dualform.answers import Grade

GRADE_COLUMNS = ("grade", "distance", "rounding", "reason")
"""Distance and rounding are relative to the distance that the weights moved."""


def grade_entries(grade: Grade) -> list[Any]:
    """Those of a row."""
    return [str(grade), grade.error, grade.rounding, grade.reason]
