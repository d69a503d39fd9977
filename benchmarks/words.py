"""Figures as they are printed."""

from __future__ import annotations

from benchmarks.result import Cell


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} µs"


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def time_of(cell: Cell, ours: float | None = None) -> str:
    """A cell's time, and how many times ours it is; or that there is none, or that it is no answer."""
    if cell.seconds is None:
        return "no"
    if cell.wrong:
        return f"**wrong** ({duration(cell.seconds)})"
    times = "" if ours is None else f" ({ratio(cell.seconds / ours)} x)"
    return duration(cell.seconds) + times
