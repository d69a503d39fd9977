"""Numbers and durations as text."""

from __future__ import annotations

import math

MINUS, MISSING = "\N{MINUS SIGN}", "\N{EN DASH}"
_LEAST, _MOST = 1e-3, 1e6
"""Numbers of a size between these are written without an exponent."""


def rounded(value: float | int | None, digits: int = 3) -> str:
    """Rounded to significant digits. Whole numbers are kept, with thousands separators."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else f"{MINUS if value < 0 else ''}\N{INFINITY}"
    size = abs(value)
    if size and not _LEAST <= size < _MOST:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    whole = math.floor(math.log10(size)) + 1 if size else 1
    text = f"{value:,.{max(0, digits - whole)}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.lstrip("-")


def decimals(largest: float, digits: int = 3) -> int:
    """The number of decimal places that gives numbers up to a size so many digits."""
    if not math.isfinite(largest) or largest <= 0:
        return digits - 1
    return min(8, max(0, digits - 1 - math.floor(math.log10(largest))))


def lasting(seconds: float) -> str:
    """An approximate duration: "8 s", "3 min", "2 h"."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
