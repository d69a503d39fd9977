"""How numbers are written: rounded, and durations in words."""

from __future__ import annotations

import math

MINUS, MISSING = "\N{MINUS SIGN}", "\N{EN DASH}"
_LEAST, _MOST = 1e-3, 1e6
"""Sizes between which a number is written out."""


def rounded(value: float | int | None, digits: int = 3) -> str:
    """To so many significant digits; whole numbers as they are, with their thousands apart."""
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
    """Places behind the point, with which numbers of a table up to that size have so many digits."""
    if not math.isfinite(largest) or largest <= 0:
        return digits - 1
    return min(8, max(0, digits - 1 - math.floor(math.log10(largest))))


def lasting(seconds: float) -> str:
    """A duration that is only about known: "8 s", "3 min", "2 h"."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
