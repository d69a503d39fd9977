"""How a table shows statuses."""

from __future__ import annotations

from typing import Any

from dualform.answers import Status

STATUS_COLUMNS = ("status", "distance", "rounding", "reason")
"""Distance and rounding are relative to the distance that the weights moved."""


def status_entries(status: Status) -> list[Any]:
    """Those of a row."""
    return [str(status), status.error, status.rounding, status.reason]
