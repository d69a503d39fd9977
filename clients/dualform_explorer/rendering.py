"""Templates and their helpers: links that hold a page's whole state, numbers, figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dualform.errors import DualformError
from dualform_explorer.drawing import (
    bar,
    boxed,
    columns,
    descents,
    heat_map,
    histogram,
    lines,
    rank_curve,
    ribbon,
    span,
    ticks,
)
from dualform_explorer.filter import Chip
from dualform_explorer.glossary import GLOSSARY, SCORE_WORDS, meaning
from dualform_explorer.words import MINUS, MISSING, decimals, lasting, rounded


@dataclass(frozen=True)
class Failure:
    """Shown in place of a panel."""

    message: str
    hint: str = ""
    code: str = ""
    field: str = ""
    """The argument of the question that caused the error."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, DualformError):
            return cls(error.message, error.hint, error.code, error.field or "")
        return cls(f"{type(error).__name__}: {error}", "This is a fault of dualform; the log has more.", "internal")


KEYS = (
    ("j  k", "next and previous example"),
    ("l  h", "next and previous layer"),
    ("/", "add to the filter"),
    ("u", "clear the filter"),
    ("s", "slots or samples"),
    ("t", "theme"),
    ("?", "list the keys"),
)


_WORDS = re.compile(
    rf"\b(?:{'|'.join(sorted(map(re.escape, GLOSSARY), key=len, reverse=True))})s?(?!\w)", re.IGNORECASE
)


def templates(asynchronous: bool = False) -> Environment:
    """The templates. Values are escaped, except figures and numbers made in this package."""
    found = Environment(
        loader=PackageLoader("dualform_explorer", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        enable_async=asynchronous,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "num": number,
        "plain": plain,
        "percent": percent,
        "rounded": rounded,
        "fixed": fixed,
        "lasting": lasting,
        "decimals": decimals,
        "heat": heat,
        "layer": layer_name,
        "in_words": layer_in_words,
        "hover": hover,
    }
    found.globals |= {
        "bar": bar,
        "boxed": boxed,
        "heat_map": heat_map,
        "chip": partial(Chip.of, True),
        "columns": columns,
        "span": span,
        "ticks": ticks,
        "ribbon": ribbon,
        "histogram": histogram,
        "lines": lines,
        "rank_curve": rank_curve,
        "descents": descents,
        "meaning": meaning,
        "score_words": SCORE_WORDS,
    }
    return found


def layer_name(name: str) -> str:
    """A model that is itself a layer has an empty name."""
    return name or "the model"


def layer_in_words(name: str) -> str:
    """A layer's name in a sentence, where a name such as 4 could be read as a number."""
    return name if name.lower().startswith("layer") else f"layer {name}" if name else layer_name(name)


def hover(text: str, word: str = "") -> Markup:
    """A heading with a tooltip for its first word of the glossary; with `word`, for that word."""
    found = None if word else _WORDS.search(text)
    if not word and found is None:
        return Markup("{}").format(text)
    start, end = found.span() if found else (0, len(text))
    abbr = Markup('<abbr title="{}">{}</abbr>').format(meaning(word or text[start:end]), text[start:end])
    return Markup("{}{}{}").format(text[:start], abbr, text[end:])


def heat(value: float, largest: float) -> str:
    """The CSS class of a cell: its distance from zero in six levels, and its sign."""
    level = round(6 * min(1.0, abs(value) / largest)) if largest else 0
    return f"{'plus' if value >= 0 else 'minus'}-{level}"


_SMALL_SHARE = 1e-3
"""Smaller shares need more digits than tenths of a percent."""


def number(value: Any, digits: int = 3) -> Markup:
    """A rounded number as HTML, with all digits in `data-value` for programs that read the page."""
    if value is None:
        return Markup('<span class="n none">{}</span>').format(MISSING)
    plain = value.item() if hasattr(value, "item") else value
    return _with_all_digits(plain, rounded(plain, digits))


def plain(value: Any) -> Any:
    """A number as `number` shows it; other values unchanged."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value, 4) if is_number or value is None else value


def fixed(value: float | None, places: int | None, sign: bool = False) -> Markup:
    """Like `number`, with a fixed number of decimal places for columns of a table; with `places` None, two significant
    digits.
    """
    if value is None or not math.isfinite(value):
        return number(value)
    if places is None:
        return number(value, 2)
    shown = f"{value:,.{places}f}"
    if not float(shown.replace(",", "")):
        shown = shown.lstrip("-")
    shown = f"+{shown}" if sign and value > 0 else shown.replace("-", MINUS)
    return _with_all_digits(value, shown)


def _with_all_digits(value: Any, shown: str) -> Markup:
    exact = repr(value)
    return Markup('<data class="n" value="{0}" data-value="{0}" title="{0}">{1}</data>').format(exact, shown)


def percent(value: float | None) -> Markup:
    if value is None:
        return number(None)
    digits = f"{100 * value:.1f}".replace("-", MINUS)
    if value and abs(value) < _SMALL_SHARE:
        digits = rounded(100 * value, 1)
    shown = f"{digits}\N{NARROW NO-BREAK SPACE}%"
    return _with_all_digits(value, shown)
