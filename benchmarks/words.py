"""Figures as they are printed."""

from __future__ import annotations

from benchmarks.result import Cell, Row, Target
from dualform.store.byte_counts import readable


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


def figure_of(cell: Cell, ours: float | None = None) -> str:
    """A cell's time, and how many times ours it is, or its bytes; "—" where there is none, or that it is no answer."""
    if cell.bytes is not None:
        return f"**wrong** ({readable(cell.bytes)})" if cell.wrong else readable(cell.bytes)
    if cell.seconds is None:
        return "—"
    if cell.wrong:
        return f"**wrong** ({duration(cell.seconds)})"
    times = "" if ours is None else f" ({ratio(cell.seconds / ours)} x)"
    spread = "" if cell.best is None or cell.worst is None else f" ({duration(cell.best)} to {duration(cell.worst)})"
    return duration(cell.seconds) + spread + times


def beside_of(row: Row) -> str:
    """What the ratio compares with, and its figure; "" where there is none."""
    return "" if row.beside_seconds is None else f"{row.beside}: {duration(row.beside_seconds)}"


def ratio_of(row: Row) -> str:
    """The ratio and its spread; "" where there is none."""
    if row.ratio is None:
        return ""
    spread = "" if row.ratios is None else f" ({ratio(row.ratios[0])} to {ratio(row.ratios[1])})"
    return ratio(row.ratio) + spread


def target_of(row: Row) -> str:
    """The bound of the ratio, or of the figure itself; "" where there is none."""
    return "" if row.target is None else f"{row.target.kind} {_bound(row.target)}"


def _bound(target: Target) -> str:
    if target.unit == "bytes":
        return readable(target.value)
    return f"{target.value:,g}" if not target.unit else _plain(duration(target.value))


def _plain(figure: str) -> str:
    """Without zeros that say nothing: 4.50 s is 4.5 s."""
    number, unit = figure.split()
    return f"{float(number.replace(',', '')):g} {unit}"
