"""Pictures of answers, of one query each, by matplotlib. A function takes numbers and draws into axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.extras import optional

_POSITIVE, _NEGATIVE = "#2a6f97", "#c1553b"
_LONGEST = 40
"""Characters of a name."""


def axes_or_new(axes: Any) -> Any:
    """The given axes, or those of a new figure. Raises MissingPackage if matplotlib is not installed."""
    return optional("matplotlib.pyplot").subplots(layout="constrained")[1] if axes is None else axes


def check_number(number: int, count: int, noun: str) -> int:
    """Raises BadInput for a query or an example that the answer does not have."""
    if not 0 <= number < count:
        raise BadInput(f"{noun} must be 0 to {count - 1}, not {number}.", field=noun)
    return number


def name_of(by: Sequence[str], group: Sequence[Any] | None) -> str:
    """ "3", or "3 | mnist" of several columns; NULL as a dash."""
    said = " | ".join("-" if value is None else str(value) for value in group or ())
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in said)
    # A dollar sign would begin a formula.
    return (plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…").replace("$", r"\$")


def draw_ranks(axes: Any, lines: Sequence[tuple[str, NDArray[Any]]], ylabel: str) -> None:
    """Scores by rank, on a logarithmic axis of ranks; a line a group."""
    for name, scores in lines:
        draw_curve(axes, np.arange(1, len(scores) + 1), scores, ylabel, name)
    if len(lines) > 1:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def draw_curve(axes: Any, ranks: NDArray[Any], scores: NDArray[Any], ylabel: str, name: str = "") -> None:
    """Scores at some ranks, on a logarithmic axis of ranks."""
    axes.plot(ranks, scores, marker="o", markersize=3, linewidth=1.2, label=name or None)
    axes.set_xscale("log")
    axes.set_xlabel("rank")
    axes.set_ylabel(ylabel)


def draw_bars(axes: Any, names: Sequence[str], numbers: Sequence[float], xlabel: str) -> None:
    """One bar a name, the first on top; colours by sign."""
    places = np.arange(len(names))
    axes.barh(places, numbers, color=[_POSITIVE if number >= 0 else _NEGATIVE for number in numbers])
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(xlabel)


def draw_terms(axes: Any, names: Sequence[str], terms: NDArray[np.float64]) -> None:
    """A field for each term and output: blue adds to the output, red takes from it. `terms`: float64[terms, d_out]."""
    most = float(np.abs(terms).max(initial=0.0)) or 1.0
    drawn = axes.imshow(terms, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.set_yticks(np.arange(len(names)), names)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("output")
    axes.figure.colorbar(drawn, ax=axes, label="contribution")
