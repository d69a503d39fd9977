"""One value that a training gives as a column: checked, copied, and spread over rows.

Shapes: B rows, `L...` token dimensions of a batch, n rows of a column.

An entry is one value for all, one for each row [B], or one for each token [B, L...]: its first axis is always the
batch, whichever axis that is in the layers' inputs. Nothing is fitted by its number of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import BadInput
from dualform.store.tables import KINDS, SLOTS, duckdb_type, what_columns_hold

Array: TypeAlias = NDArray[Any]

_BUILT_IN = {*SLOTS, "datapoint"}
_ANSWERED = ("query", "score", "group", "count")
"""Fields of answers that stand beside slot columns."""
_INTEGERS = ("label", "sample", "position", "row")
_LARGEST = np.iinfo(np.int64).max


def check_names(columns: Iterable[str]) -> None:
    """Raises BadInput for what cannot name a column of the user's."""
    names = list(columns)
    for name in names:
        if not name or not _is_unicode(name):
            raise BadInput(f"{name!r} cannot name a column.", hint="Give it a name of Unicode text.", field=name)
        if name.lower() in _BUILT_IN:
            raise BadInput(f"{name!r} is a column that the recorder fills itself.", field=name)
        if name.lower() in _ANSWERED:
            raise BadInput(f"{name!r} is what answers call a field of their own.", hint="Rename it.", field=name)
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise BadInput(f"two columns are called {name!r} but for case, which SQL does not see.", field=name)


def checked_dims(batch_dim: int | Mapping[str, int] | None) -> int | dict[str, int] | None:
    """`batch_dim` as it is given to a step. Raises BadInput for an axis that is neither 0 nor 1."""
    for said in batch_dim.values() if isinstance(batch_dim, Mapping) else [batch_dim]:
        if said not in (None, 0, 1):
            raise BadInput(f"batch_dim is {said}.", hint="The batch is axis 0 or 1.", field="batch_dim")
    return dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim


def mask_of(mask: Any) -> Array:
    """An owned array of booleans. Raises BadInput for anything else."""
    if np.ma.is_masked(mask):
        raise BadInput("mask has entries that are masked.", hint="Fill them with true or false.", field="mask")
    given = as_array("mask", mask)
    if given.dtype != np.bool_:
        raise BadInput(f"mask holds {given.dtype}.", hint="Give booleans, true for real tokens.", field="mask")
    return given


def as_array(name: str, value: Any) -> Array:
    """An array of our own. Raises BadInput, naming the argument, for what is none."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype.itemsize == 2 and value.is_floating_point() else value.numpy()
    try:
        return np.array(value)
    except ValueError:
        raise BadInput(f"{name} is ragged.", hint="Give an array or a tensor.", field=name) from None


def column_of(name: str, value: Any) -> Array:
    """An owned array in the column's own type. Raises BadInput for one that no column holds."""
    missing = np.ma.getmaskarray(value) if np.ma.is_masked(value) else None
    entry = as_array(name, value if missing is None else value.filled(0))
    if missing is not None and entry.dtype.kind in "UO":
        entry = entry.astype(np.object_)
        entry[missing] = None
    kind, stored = entry.dtype.kind, duckdb_type(entry)
    if stored is None or (kind == "O" and not all(v is None or isinstance(v, str) for v in entry.flat)):
        raise BadInput(f"{name} holds {_said(entry)}.", hint=what_columns_hold(), field=name)
    if name in _INTEGERS and kind not in "iu":
        raise BadInput(
            f"{name} holds {_said(entry)}.",
            hint=f"It is an integer column; record other values under a name of your own, as step(my_{name}=…).",
            field=name,
        )
    if name == "dataset" and kind not in "UO":
        raise BadInput(f"dataset holds {_said(entry)}.", hint="Name datasets by text.", field=name)
    if kind == "u" and entry.size and entry.max() > _LARGEST:
        raise BadInput(
            f"{name} holds {entry.max()}, and integers are at most {_LARGEST}.",
            hint="Record it as text.",
            field=name,
        )
    if kind in "UO" and not _is_unicode("".join(text for text in entry.flat if text is not None)):
        raise BadInput(f"{name} holds text that is no Unicode: a lone surrogate.", hint="Replace it.", field=name)
    entry = entry.astype(KINDS[stored].numpy, copy=False)
    return entry if missing is None or entry.dtype == np.object_ else _masked(name, entry, missing)


def _masked(name: str, entry: Array, missing: NDArray[np.bool_]) -> Array:
    """An entry whose missing values are NULL."""
    if name == "position":
        raise BadInput(
            "position has entries that are masked.", hint="Every slot has one; leave slots out with mask=.", field=name
        )
    if name == "row":
        return np.where(missing, -1, entry)
    return np.ma.MaskedArray(entry, mask=missing)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _said(entry: Array) -> str:
    kinds = sorted({type(v).__name__ for v in entry.flat if not isinstance(v, str)}) if entry.dtype.kind == "O" else []
    return ", ".join(kinds) or str(entry.dtype)


def spread(entry: Array | None, dtype: np.dtype[Any], rows: int) -> Array:
    """[n]: a column of one value, of one for each row, or of NULLs where nothing is given."""
    if entry is None or (entry.ndim == 0 and np.ma.is_masked(entry)):
        return nulls(rows, dtype)
    if entry.ndim:
        return entry[:rows]
    return _repeated(entry.item(), rows) if dtype == np.object_ else np.full(rows, entry[()], dtype=dtype)


@lru_cache(maxsize=16)
def _repeated(text: str | None, n: int) -> Array:
    """A column of one text; shared between steps, so nobody may write to it."""
    return np.full(n, text, dtype=np.object_)


@lru_cache(maxsize=16)
def nulls(n: int, dtype: np.dtype[Any]) -> Array:
    """A column of NULLs; shared between steps, so nobody may write to it."""
    if dtype == np.object_:
        return np.full(n, None, dtype=np.object_)
    return np.ma.MaskedArray(np.zeros(n, dtype=dtype), mask=np.ones(n, dtype=np.bool_))
