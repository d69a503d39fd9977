"""Checks of arguments. A field of a question names its check in its type: `Annotated[int | None, as_step]`.

A check takes a value and the name of its field. It returns what the field holds, or raises BadInput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from math import isfinite
from numbers import Real
from typing import Annotated, Any, TypeAlias, get_type_hints

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


def check_fields(value: Any) -> None:
    """Puts what the checks of a dataclass's fields return in their place."""
    for name, check in _checks(value.__class__):
        object.__setattr__(value, name, check(getattr(value, name), name))


@cache
def _checks(kind: type[Any]) -> list[tuple[str, Callable[[Any, str], Any]]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(own.name, check) for own in fields(kind) for check in getattr(hints[own.name], "__metadata__", ())]


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


def as_some_columns(by: str | Sequence[str], field: str = "by") -> tuple[str, ...]:
    """As `as_by`, of one column at least."""
    if not (names := as_by(by, field)):
        raise BadInput(f"{field} must name at least one column.", hint=f'For example {field}="label".', field=field)
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
    wanted = "at least 1" if isinstance(k, int | np.integer) and not isinstance(k, bool) else "a whole number"
    return min(_as_whole(k, name, 1, wanted, f"{name}=10 asks for 10 {noun}s."), np.iinfo(np.int64).max)


def as_groups(k: int | None, name: str = "k") -> int | None:
    """How many groups of each query; None for all."""
    return None if k is None else as_k(k, "group", name)


def as_points(points: int, name: str = "points") -> int:
    """The number of ranks of a distribution. Raises BadInput if it is too small for the first ten and the last."""
    hint = f"{LEAST_POINTS} points are the first {LEAST_POINTS - 1} ranks and the last one."
    return _as_whole(points, name, LEAST_POINTS, f"a whole number of at least {LEAST_POINTS}", hint)


def _as_whole(value: Any, name: str, least: int, wanted: str, hint: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadInput(f"{name} must be {wanted}, not {shown(value)}.", hint=hint, field=name)
    return int(value)


def as_layer(layer: str | None, name: str = "layer") -> str | None:
    """Raises BadInput for what is neither a text nor None."""
    return None if layer is None else _as_text(layer, name, "the name of a layer", 'For example layer="head".')


def as_score(score: str, name: str = "score") -> str:
    """Raises BadInput if it is not a text. Only the engine knows which scores there are (query/score/algebra.py)."""
    return _as_text(score, name, "the name of a score", 'For example score="abs".')


def as_query_set(query_set: str, name: str = "name") -> str:
    return _as_text(query_set, name, "the name of a query set", 'For example "test".')


def as_name(value: str | None, name: str) -> str | None:
    return None if value is None else _as_text(value, name, "a name", "")


def _as_text(value: Any, name: str, wanted: str, hint: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{name} must be {wanted}, not {shown(value)}.", hint=hint, field=name)
    return value


def as_step(at_step: int | None, name: str = "at_step") -> int | None:
    """The number of recorded steps that count; None for all. Raises BadInput for anything else."""
    hint = "at_step=0 is the initial network; leave it out for the end of the training."
    return None if at_step is None else _as_whole(at_step, name, 0, "a whole number from 0 on", hint)


def check_step(at_step: int | None, recorded: int) -> None:
    """Raises BadInput unless it is a number of steps, and not more than were `recorded`."""
    if (step := as_step(at_step)) is not None and step > recorded:
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


By: TypeAlias = Annotated[tuple[str, ...], as_by]
SomeColumns: TypeAlias = Annotated[tuple[str, ...], as_some_columns]
Flag: TypeAlias = Annotated[bool, as_flag]
GroupCount: TypeAlias = Annotated[int | None, as_groups]
LayerName: TypeAlias = Annotated[str | None, as_layer]
SlotCount: TypeAlias = Annotated[int, lambda k, name: as_k(k, "datapoint", name)]
Step: TypeAlias = Annotated[int | None, as_step]
