"""How numbers are shown: rounded, with all their digits beside them."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

_MINUS, _MISSING = "\N{MINUS SIGN}", "\N{EN DASH}"
_LEAST, _MOST = 1e-3, 1e6
"""Sizes between which a number is written out."""
_SMALL_SHARE = 1e-3
"""Below it a tenth of a percent is too coarse."""


def rounded(value: float | int | None, digits: int = 3) -> str:
    """To so many significant digits; whole numbers as they are, with their thousands apart."""
    if value is None:
        return _MISSING
    if isinstance(value, int):
        return f"{value:,}".replace("-", _MINUS)
    if not math.isfinite(value):
        return _MISSING if math.isnan(value) else f"{_MINUS if value < 0 else ''}\N{INFINITY}"
    size = abs(value)
    if size and not _LEAST <= size < _MOST:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}".replace("-", _MINUS)
    whole = math.floor(math.log10(size)) + 1 if size else 1
    text = f"{value:,.{max(0, digits - whole)}f}"
    return text.replace("-", _MINUS) if float(text.replace(",", "")) else text.lstrip("-")


def number(value: Any, digits: int = 3) -> Markup:
    """As HTML: rounded for the reader, with all digits in `data-value`, for whoever wants to calculate with it."""
    if value is None:
        return Markup('<span class="n none">{}</span>').format(_MISSING)
    plain = value.item() if hasattr(value, "item") else value
    return _with_all_digits(plain, rounded(plain, digits))


def plain(value: Any) -> Any:
    """A value of any type: numbers as `number` has them, others as they are."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value, 4) if is_number or value is None else value


def decimals(largest: float, digits: int = 3) -> int:
    """Places behind the point, with which numbers of a table up to that size have so many digits."""
    if not math.isfinite(largest) or largest <= 0:
        return digits - 1
    return min(8, max(0, digits - 1 - math.floor(math.log10(largest))))


def fixed(value: float | None, places: int | None, sign: bool = False) -> Markup:
    """As `number`, with so many places behind the point, so that numbers below each other can be compared; without
    `places` to two digits.
    """
    if value is None or not math.isfinite(value):
        return number(value)
    if places is None:
        return number(value, 2)
    shown = f"{value:,.{places}f}"
    if not float(shown.replace(",", "")):
        shown = shown.lstrip("-")
    shown = f"+{shown}" if sign and value > 0 else shown.replace("-", _MINUS)
    return _with_all_digits(value, shown)


def _with_all_digits(value: Any, shown: str) -> Markup:
    exact = repr(value)
    return Markup('<data class="n" value="{0}" data-value="{0}" title="{0}">{1}</data>').format(exact, shown)


def percent(value: float | None) -> Markup:
    if value is None:
        return number(None)
    digits = f"{100 * value:.1f}".replace("-", _MINUS)
    if value and abs(value) < _SMALL_SHARE:
        digits = rounded(100 * value, 1)
    shown = f"{digits}\N{NARROW NO-BREAK SPACE}%"
    return _with_all_digits(value, shown)


def lasting(seconds: float) -> str:
    """A duration that is only about known: "8 s", "3 min", "2 h"."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
