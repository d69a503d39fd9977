"""Templates, and what they are given: links that hold a page's whole state, numbers, figures."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from dualform_explorer.drawing.bars import bar, columns
from dualform_explorer.drawing.descents import descents
from dualform_explorer.drawing.histogram import histogram
from dualform_explorer.drawing.ranks import rank_curve
from dualform_explorer.numbers import decimals, fixed, number, percent, plain, rounded


def templates(asynchronous: bool = False) -> Environment:
    """Everything that is put into a page is text in it, unless it was drawn here."""
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
        "decimals": decimals,
        "heat": heat,
        "layer": layer_name,
        "in_words": layer_in_words,
    }
    found.globals |= {
        "bar": bar,
        "columns": columns,
        "histogram": histogram,
        "rank_curve": rank_curve,
        "descents": descents,
    }
    return found


def layer_name(name: str) -> str:
    """A model that is a layer itself has no name for it."""
    return name or "the model"


def layer_in_words(name: str) -> str:
    """Within a sentence, where a name such as 4 alone would be taken for a number."""
    return name if name.lower().startswith("layer") else f"layer {name}" if name else layer_name(name)


def heat(value: float, largest: float) -> str:
    """The class of a cell: how far it is from zero, in six levels, and on which side."""
    level = round(6 * min(1.0, abs(value) / largest)) if largest else 0
    return f"{'plus' if value >= 0 else 'minus'}-{level}"
