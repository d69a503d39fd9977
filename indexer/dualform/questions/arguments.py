"""Arguments of questions, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.questions.numbers_given import as_array

MOST_COLUMNS = 8
"""That a question groups by."""
LEAST_POINTS = 11
"""Ranks at which a distribution is given: each of the first ten, and the last."""
KERNELS = ("linear", "softmax")
"""What weighs a layer's slots: their inner products with a query, or the softmax of those."""

_SHOWN = 80
"""Characters of a value that does not fit, in a message."""


def as_by(by: str | Sequence[str] | None, field: str = "by") -> tuple[str, ...]:
    """Column names of a grouping: "label", ("dataset", "label"), or None for none."""
    names = (by,) if isinstance(by, str) else by or ()
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{field} is {shown(by)}.", hint=f'Name columns, for example {field}="label".', field=field)
    names = tuple(names)
    if len(names) > MOST_COLUMNS:
        raise BadInput(
            f"{field} names {len(names)} columns; at most {MOST_COLUMNS} are allowed.",
            hint="Each column that is added makes smaller groups.",
            field=field,
        )
    if len(set(names)) < len(names):
        raise BadInput(f"{field} names a column twice: {', '.join(names)}.", field=field)
    return names


def as_flag(value: bool, name: str) -> bool:
    """Raises BadInput where it is neither True nor False, for a text such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise BadInput(f"{name} is {shown(value)}.", hint="It is True or False.", field=name)
    return bool(value)


def as_ids(ids: Sequence[int] | NDArray[np.int64], name: str = "ids") -> NDArray[np.int64]:
    """int64[n] of numbers of slots, or of samples. Raises BadInput where they are no one-dimensional integers, and for
    NULL.
    """
    check_no_nulls(ids, name)
    try:
        array = as_array(ids)
        whole = array.astype(np.int64) if not array.size or array.dtype.kind in "iu" else None
        if whole is not None and array.dtype.kind == "u" and (whole < 0).any():
            whole = None  # more than an int64 holds
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or whole.ndim != 1:
        counted = "Slots" if name == "ids" else name.capitalize()
        raise BadInput(f"{name} must be a list of whole numbers.", hint=f"{counted} count from 0.", field=name)
    return whole


def check_no_nulls(numbers: Any, name: str) -> None:
    """Raises BadInput for a masked array, as a column with NULLs is, where any of it is: what stands below the mask is
    nobody's number.
    """
    if isinstance(numbers, np.ma.MaskedArray) and np.ma.getmaskarray(numbers).any():
        raise BadInput(f"{name} holds NULL.", hint=f"Leave those out, as {name}[~{name}.mask] does.", field=name)


def as_k(k: int, noun: str, name: str = "k") -> int:
    """How many are asked for, or as many as an int64 holds. Raises BadInput where it is no whole number above 0."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise BadInput(f"{name} is {shown(k)}.", hint=f"Ask for at least 1 {noun}.", field=name)
    return min(int(k), np.iinfo(np.int64).max)


def as_points(points: int) -> int:
    """At how many ranks scores are asked for. Raises BadInput where there is no room for the first ten and the last."""
    if isinstance(points, bool) or not isinstance(points, int | np.integer) or points < LEAST_POINTS:
        raise BadInput(
            f"points is {shown(points)}.",
            hint=f"Ask for at least {LEAST_POINTS}: the first {LEAST_POINTS - 1} ranks, and the last.",
            field="points",
        )
    return int(points)


def check_layer(layer: str | None) -> None:
    """Raises BadInput for what is neither a text nor None."""
    if layer is not None and not isinstance(layer, str):
        raise BadInput(f"layer is {shown(layer)}.", hint="Give a layer's name.", field="layer")


def check_score(score: str) -> None:
    """Raises BadInput if it is not a text. Only the engine knows which scores there are (query/score/kinds/)."""
    if not isinstance(score, str):
        raise BadInput(f"score is {shown(score)}.", hint='Name a score, for example "abs".', field="score")


def check_step(at_step: int | None, recorded: int | None = None) -> None:
    """Raises BadInput where it is no number of steps, or more than were `recorded`, where that is known by now."""
    if at_step is None:
        return
    if isinstance(at_step, bool) or not isinstance(at_step, int | np.integer) or at_step < 0:
        raise BadInput(f"at_step is {shown(at_step)}.", hint="Steps count from 0.", field="at_step")
    if recorded is not None and at_step > recorded:
        raise BadInput(
            f"at_step is {shown(at_step)}, and {recorded} steps were recorded.",
            hint=f"Ask for 0 (the initial network) to {recorded} (the end).",
            field="at_step",
        )


def as_temperature(kernel: str, temperature: float | None) -> float | None:
    """Of a kernel: None for "linear", which has none, and for "softmax" a number above 0, 1.0 where none is given.

    Raises BadInput for another kernel, and for a temperature that it cannot have.
    """
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise BadInput(
            f"kernel is {shown(kernel)}.", hint=f"It is {' or '.join(map(_quoted, KERNELS))}.", field="kernel"
        )
    if temperature is None:
        return 1.0 if kernel == "softmax" else None
    if kernel != "softmax":
        raise BadInput(
            f"the kernel {shown(kernel)} has no temperature.", hint='Ask with kernel="softmax".', field="temperature"
        )
    number = 0.0
    if isinstance(temperature, Real) and not isinstance(temperature, bool):
        with suppress(OverflowError):
            number = float(temperature)
    if not (isfinite(number) and number > 0):
        raise BadInput(f"temperature is {shown(temperature)}.", hint="It is finite and above 0.", field="temperature")
    return number


def _quoted(name: str) -> str:
    return f'"{name}"'


def shown(value: object) -> str:
    """A value that was given where another kind belongs, for a message: large ones are cut."""
    try:
        found = " ".join(repr(value).split())
    except ValueError:  # Python writes out no integer of thousands of digits
        return "a number of thousands of digits"
    return found if len(found) <= _SHOWN else f"{found[:_SHOWN]}…"
