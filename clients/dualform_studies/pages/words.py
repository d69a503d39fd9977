"""Shares and lists in words, cells of a table as they are read, columns of numbers, and headings as links name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ± \d+(\.\d+)?)?( %)?")
_NOTHING = ("", "-")


def percent(share: float, form: str = ".1f") -> str:
    """A share of 1 in per cent, its number in the given form: "97.4 %"."""
    return f"{100 * share:{form}} %"


def in_fraction(share: float) -> str:
    """A share as a fraction of small numbers, as "2/3"."""
    return str(Fraction(share).limit_denominator(100))


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: "a", "a and b", "a, b and c"; empty without any."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


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


def are_numbers(cells: Iterable[object]) -> bool:
    """Whether a column is one of numbers, which stand to the right: each cell is one, also in words, or is empty."""
    told = [cell for cell in cells if cell is not None and cell not in _NOTHING]
    return bool(told) and all(isinstance(cell, int | float) or _is_number(cell) for cell in told)


def _is_number(cell: object) -> bool:
    return isinstance(cell, str) and _NUMBER.fullmatch(cell) is not None
