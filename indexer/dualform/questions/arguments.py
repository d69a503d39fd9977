"""Checks of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput


def as_array(given: Any) -> NDArray[Any]:
    """What NumPy makes of numbers; of tensors, too, of any type and in any place, with gradients or without, alone or
    in lists.

    Raises TypeError or ValueError for what no array can be made of.
    """
    try:
        return np.asarray(_without_tensors(given))
    except RuntimeError as error:  # raised by torch for a tensor without numbers
        raise TypeError(str(error)) from None


def _without_tensors(given: Any) -> Any:
    if hasattr(given, "detach"):  # a tensor: NumPy knows nothing of its gradients, of bfloat16, or of a GPU
        own = given.detach().cpu()
        return (own.float() if own.is_floating_point() else own).numpy()
    if isinstance(given, list | tuple) and _first_is_tensor(given):
        return [_without_tensors(part) for part in given]
    return given


def _first_is_tensor(given: Any) -> bool:
    """Of lists in lists, the innermost: one that holds numbers is left to NumPy."""
    while isinstance(given, list | tuple) and given:
        given = given[0]
    return hasattr(given, "detach")


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
        raise BadInput(
            f"{field} must be one or more column names, not {shown(by)}.",
            hint=f'For example {field}="label" or {field}=("dataset", "label").',
            field=field,
        )
    names = tuple(names)
    if len(names) > MOST_COLUMNS:
        raise BadInput(
            f"{field} names {len(names)} columns; at most {MOST_COLUMNS} are allowed.",
            hint=f"Pass fewer columns, for example {field}={names[:2]}.",
            field=field,
        )
    if len(set(names)) < len(names):
        raise BadInput(f"{field} names a column twice: {', '.join(names)}.", field=field)
    return names


def as_flag(value: bool, name: str) -> bool:
    """Raises BadInput where it is neither True nor False, for a text such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise BadInput(f"{name} must be True or False, not {shown(value)}.", field=name)
    return bool(value)


def as_ids(ids: Sequence[int] | NDArray[np.int64], name: str = "ids") -> NDArray[np.int64]:
    """int64[n], numbers of slots or of samples. Raises BadInput unless they are integers [n] without NULL."""
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
        raise BadInput(
            f"{name} must be a list of whole numbers.", hint=f"{counted} count from 0, for example [0, 17].", field=name
        )
    return whole


def check_no_nulls(numbers: Any, name: str) -> None:
    """Raises BadInput for a masked array, as a column with NULLs is, where any of it is: what stands below the mask is
    nobody's number.
    """
    if isinstance(numbers, np.ma.MaskedArray) and np.ma.getmaskarray(numbers).any():
        raise BadInput(f"{name} contains NULL.", hint=f"Leave them out: {name}[~{name}.mask].", field=name)


def as_k(k: int, noun: str, name: str = "k") -> int:
    """A positive whole number, capped at the largest int64. Raises BadInput for anything else."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        wanted = "at least 1" if isinstance(k, int | np.integer) and not isinstance(k, bool) else "a whole number"
        raise BadInput(f"{name} must be {wanted}, not {shown(k)}.", hint=f"{name}=10 asks for 10 {noun}s.", field=name)
    return min(int(k), np.iinfo(np.int64).max)


def as_points(points: int) -> int:
    """The number of ranks of a distribution. Raises BadInput if it is too small for the first ten and the last."""
    if isinstance(points, bool) or not isinstance(points, int | np.integer) or points < LEAST_POINTS:
        raise BadInput(
            f"points must be a whole number of at least {LEAST_POINTS}, not {shown(points)}.",
            hint=f"{LEAST_POINTS} points are the first {LEAST_POINTS - 1} ranks and the last one.",
            field="points",
        )
    return int(points)


def check_layer(layer: str | None) -> None:
    """Raises BadInput for what is neither a text nor None."""
    if layer is not None and not isinstance(layer, str):
        raise BadInput(
            f"layer must be the name of a layer, not {shown(layer)}.",
            hint='For example layer="head".',
            field="layer",
        )


def check_score(score: str) -> None:
    """Raises BadInput if it is not a text. Only the engine knows which scores there are (query/score/algebra.py)."""
    if not isinstance(score, str):
        raise BadInput(
            f"score must be the name of a score, not {shown(score)}.", hint='For example score="abs".', field="score"
        )


def check_step(at_step: int | None, recorded: int | None = None) -> None:
    """Raises BadInput unless it is a number of steps, and not more than were `recorded`, if that is known."""
    if at_step is None:
        return
    if isinstance(at_step, bool) or not isinstance(at_step, int | np.integer) or at_step < 0:
        raise BadInput(
            f"at_step must be a whole number from 0 on, not {shown(at_step)}.",
            hint="at_step=0 is the initial network; leave it out for the end of the training.",
            field="at_step",
        )
    if recorded is not None and at_step > recorded:
        raise BadInput(
            f"at_step must be at most {recorded}, the number of recorded steps, not {shown(at_step)}.",
            hint=f"Pass 0 (the initial network) to {recorded} (the end).",
            field="at_step",
        )


def as_temperature(kernel: str, temperature: float | None) -> float | None:
    """The temperature of a kernel: None for "linear", and a positive number for "softmax", by default 1.0.

    Raises BadInput for another kernel, and for an invalid temperature.
    """
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise BadInput(
            f"Unknown kernel {shown(kernel)}.",
            hint=f"Choose {' or '.join(f'kernel={_quoted(name)}' for name in KERNELS)}.",
            field="kernel",
        )
    if temperature is None:
        return 1.0 if kernel == "softmax" else None
    if kernel != "softmax":
        raise BadInput(
            f'temperature cannot be used with kernel="{kernel}".',
            hint='Pass kernel="softmax".',
            field="temperature",
        )
    number = 0.0
    if isinstance(temperature, Real) and not isinstance(temperature, bool):
        with suppress(OverflowError):
            number = float(temperature)
    if not (isfinite(number) and number > 0):
        raise BadInput(
            f"temperature must be a finite number above 0, not {shown(temperature)}.",
            hint="For example temperature=1.0.",
            field="temperature",
        )
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
