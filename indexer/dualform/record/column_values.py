"""One value that a training gives as a column: checked, copied, and spread over rows.

Shapes: B rows, `L...` token dimensions of a batch, n rows of a column.

An entry is one value for all, one for each row [B], or one for each token [B, L...]: its first axis is always the
batch, whichever axis that is in the layers' inputs. Nothing is fitted by its number of elements.

A value is stored as it is, or refused. What is missing (None, a masked entry, a null of pandas, polars or Arrow) is
NULL. NaN is a float like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import BadInput
from dualform.store.tables import KINDS, SLOTS, duckdb_type, what_columns_hold

Array: TypeAlias = NDArray[Any]

_BUILT_IN = {*SLOTS, "datapoint"}
_ANSWERED = ("query", "score", "group", "count")
"""Fields of answers that stand beside slot columns."""
_ARGUMENTS = ("at", "batch_dim")
"""Arguments of step() that are no columns."""
_INTEGERS = ("label", "sample", "position", "row")
_LARGEST = np.iinfo(np.int64).max
_WHOLE = 2**53
"""A double holds all integers up to it."""
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_NUMBERS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def check_names(columns: Iterable[str]) -> None:
    """Raises BadInput for what cannot name a column of the user's."""
    names = list(columns)
    for name in names:
        if not name or not _is_unicode(name):
            raise BadInput(
                f"{name!r} cannot name a column.", hint="Choose a name of Unicode text that is not empty.", field=name
            )
        if name.lower() in _BUILT_IN:
            raise BadInput(f"Column {name!r} is filled by the recorder.", hint="Choose another name.", field=name)
        if name.lower() in _ARGUMENTS:
            raise BadInput(
                f"{name!r} is an argument of step(), and cannot name a column.", hint="Rename it.", field=name
            )
        if name.lower() in _ANSWERED:
            raise BadInput(
                f"{name!r} cannot name a column: results have a field of this name.", hint="Rename it.", field=name
            )
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise BadInput(
                f"Two columns are called {name!r} and differ only in case, which SQL ignores.",
                hint="Rename one of them.",
                field=name,
            )


def checked_dims(batch_dim: int | Mapping[str, int] | None) -> int | dict[str, int] | None:
    """`batch_dim` as it is given to a step. Raises BadInput for an axis that is neither 0 nor 1."""
    for said in batch_dim.values() if isinstance(batch_dim, Mapping) else [batch_dim]:
        if said is not None and not (isinstance(said, int | np.integer) and said in (0, 1)):
            told = said if isinstance(said, int | np.integer) else f"of type {type(said).__name__}"
            raise BadInput(
                f"batch_dim must be 0 or 1, the axis of the batch, not {told}.",
                hint="If you meant a column, give it another name.",
                field="batch_dim",
            )
    return dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim


def checked_at(at: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Mapping[str, Any]]:
    """`at` as it is given to a step. Raises BadInput for what names no spaces."""
    if at is None:
        return {}
    if not isinstance(at, Mapping) or not all(isinstance(columns, Mapping) for columns in at.values()):
        raise BadInput(
            f"at must be {{space: {{column: values}}}}, not {type(at).__name__}.",
            hint='For example at={"token": {"position": positions}}. If you meant a column, give it another name.',
            field="at",
        )
    return at


def mask_of(mask: Any) -> Array:
    """An owned array of booleans. Raises BadInput for anything else."""
    given, missing = _values("mask", mask)
    if missing is not None:
        raise BadInput(
            "mask must not contain missing entries.", hint="Fill them: mask=mask.filled(False).", field="mask"
        )
    if given.dtype != np.bool_:
        raise BadInput(
            f"mask must be bool, not {_said(given)}.", hint="Pass True for real tokens: mask=mask.bool().", field="mask"
        )
    return given


def column_of(name: str, value: Any) -> Array:
    """An owned array in the column's own type. Raises BadInput for one that no column holds."""
    entry, missing = _values(name, value)
    if name in _INTEGERS and _all_missing(entry):
        entry, missing = np.zeros(entry.shape, np.int64), np.ones(entry.shape, np.bool_) if entry.size else None
    kind, stored = entry.dtype.kind, duckdb_type(entry)
    if stored is None:
        raise BadInput(f"{name} cannot hold {_said(entry)}.", hint=what_columns_hold(), field=name)
    if name in _INTEGERS and kind not in "iu":
        raise BadInput(
            f"{name} must be whole numbers, not {_said(entry)}.",
            hint=f"Record other values under another name, for example step(my_{name}=…).",
            field=name,
        )
    if name == "dataset" and kind not in "UO":
        raise BadInput(
            f"dataset must be text, not {_said(entry)}.", hint='For example step(dataset="mnist").', field=name
        )
    if kind == "u" and entry.size and entry.max() > _LARGEST:
        raise _too_large(name, int(entry.max()))
    if kind in "UO" and not _is_unicode("".join(text for text in entry.flat if text is not None)):
        raise BadInput(
            f"{name} contains text that is not valid Unicode (a lone surrogate).", hint="Replace it.", field=name
        )
    own = entry.astype(KINDS[stored].numpy, copy=False)
    if kind == "f" and entry.dtype.itemsize > own.dtype.itemsize and not np.array_equal(own, entry, equal_nan=True):
        raise BadInput(
            f"{name} contains {_said(entry)} values that float64 cannot hold exactly.",
            hint=f"Round them: {name}={name}.astype('float64').",
            field=name,
        )
    return own if missing is None or own.dtype == np.object_ else _masked(name, own, missing)


def fitted(name: str, entry: Array, known: np.dtype[Any]) -> Array:
    """An entry in the type that its column has: integers in a column of floats are floats, and an entry of which all
    is missing has any type. Raises BadInput for any other.
    """
    if entry.dtype == known:
        return entry
    if _all_missing(entry):
        nothing = np.full(entry.shape, None, dtype=np.object_)
        return nothing if known == np.object_ else np.ma.MaskedArray(np.zeros(entry.shape, known), mask=True)
    own = np.ma.getdata(entry)
    if own.dtype.kind == "i" and known.kind == "f" and not ((own < -_WHOLE) | (own > _WHOLE)).any():
        return entry.astype(known)
    hint = "Give every step the same type."
    if entry.dtype.kind == "f" and known.kind == "i":
        hint = f"Pass floats from the first step on: {name}=float(x)."
    raise BadInput(f"Column {name!r} changed its type from {known} to {entry.dtype}.", hint=hint, field=name)


def _values(name: str, value: Any) -> tuple[Array, NDArray[np.bool_] | None]:
    """An owned array, and which of its entries are missing; None where none is, and of texts, whose array has None.

    Raises BadInput, naming the argument, for what is no array of values of one kind.
    """
    try:
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        if isinstance(value, Tensor):
            return _of_tensor(value), None
        if isinstance(value, np.ma.MaskedArray):
            return _of_masked(name, value)
        if _is_table(value):
            raise BadInput(f"{name} must be a column, not a table.", hint="Pass one of its columns.", field=name)
        if (column := _as_arrow(value)) is not None:
            return _of_arrow(name, column)
        if hasattr(value, "__array__") and not isinstance(value, np.generic):
            entry = np.array(value)
            if entry.dtype.kind == "O" and hasattr(value, "isna"):  # pandas: NaN is missing among objects
                entry[np.asarray(value.isna())] = None
            return _of_objects(name, entry.astype(np.object_)) if entry.dtype.kind in "OT" else (entry, None)
        return _of_objects(name, np.array(_without_tensors(value), dtype=np.object_))
    except (ValueError, TypeError, RuntimeError, pa.ArrowException) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{name} cannot be read: {error}", hint="Pass an array or a tensor.", field=name) from None


def _of_tensor(value: Tensor) -> Array:
    value = value.detach().cpu()
    narrow = value.is_floating_point() and value.dtype.itemsize <= 2  # NumPy has no bfloat16
    return np.array((value.float() if narrow else value).numpy())


def _without_tensors(value: Any) -> Any:
    """Lists of tensors as lists of arrays."""
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, list | tuple) and any(
        issubclass(kind, Tensor | list | tuple) for kind in set(map(type, value))
    ):
        return [_without_tensors(part) for part in value]
    return value


def _of_masked(name: str, value: Any) -> tuple[Array, NDArray[np.bool_] | None]:
    missing = np.ma.getmaskarray(value)
    if value.dtype.kind in "OUT":
        entry = np.array(value.data, dtype=np.object_)
        entry[missing] = None
        return _of_objects(name, entry)
    return np.array(value.filled(0)), missing if missing.any() else None


def _is_table(value: Any) -> bool:
    return isinstance(value, pa.Table | pa.RecordBatch) or (hasattr(value, "columns") and hasattr(value, "dtypes"))


def _as_arrow(value: Any) -> pa.Array | None:
    """A column of Arrow, of polars, or of a type of pandas' own; None for anything else."""
    library = type(value).__module__.partition(".")[0]
    if library == "polars" and hasattr(value, "to_arrow"):
        value = value.to_arrow()
    elif library == "pandas" and hasattr(value, "dtype") and not isinstance(value.dtype, np.dtype):
        value = pa.array(value)
    if isinstance(value, pa.ChunkedArray):
        return pa.concat_arrays(value.chunks) if value.num_chunks else pa.array([], value.type)
    return value if isinstance(value, pa.Array) else None


def _of_arrow(name: str, column: pa.Array) -> tuple[Array, NDArray[np.bool_] | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if any(own(kind) for own in _NUMBERS):
        missing = np.asarray(column.is_null()) if column.null_count else None
        if missing is not None:
            column = column.fill_null(pa.scalar(False) if pa.types.is_boolean(kind) else pa.scalar(0, kind))
        return np.array(column.to_numpy(zero_copy_only=False)), missing
    if pa.types.is_null(kind) or any(own(kind) for own in (*_TEXTS, *_LISTS)):
        return _of_objects(name, np.array(column.to_pylist(), dtype=np.object_))
    raise BadInput(f"{name} cannot hold {kind}.", hint=what_columns_hold(), field=name)


def _of_objects(name: str, entry: Array) -> tuple[Array, NDArray[np.bool_] | None]:
    """As `_values`, of an array of objects."""
    values = entry.ravel().tolist()
    if not set(map(type, values)) <= _PLAIN:
        values = [_plain(value) for value in values]
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {str}:
        texts = np.empty(len(values), dtype=np.object_)
        texts[:] = values
        return texts.reshape(entry.shape), None
    if list in kinds or np.ndarray in kinds:
        raise BadInput(
            f"{name} must have rows of one length.", hint="Pass an array or a tensor, padded if necessary.", field=name
        )
    missing = None
    if None in values:
        missing = np.array([value is None for value in values], dtype=np.bool_).reshape(entry.shape)
        values = [0 if value is None else value for value in values]
    if (dtype := _DTYPES.get(frozenset(kinds))) is None:
        said = ", ".join(sorted(kind.__name__ for kind in kinds))
        mixed = kinds <= _PLAIN and len(kinds) > 1
        hint = "Pass values of one kind, and None for missing ones." if mixed else what_columns_hold()
        raise BadInput(f"{name} cannot hold {said}.", hint=hint, field=name)
    if kinds == {int, float} and any(isinstance(own, int) and int(float(own)) != own for own in values):
        raise BadInput(
            f"{name} mixes floats with integers too large for a float.", hint="Pass values of one type.", field=name
        )
    try:
        return np.array(values, dtype=dtype).reshape(entry.shape), missing
    except OverflowError:
        raise _too_large(name, max(values, key=abs)) from None


_PLAIN = {bool, int, float, str, type(None)}
_DTYPES: Mapping[frozenset[type], type] = {
    frozenset({bool}): np.bool_,
    frozenset({int}): np.int64,
    frozenset({float}): np.float64,
    frozenset({int, float}): np.float64,
}


def _plain(value: Any) -> Any:
    """A value as one of Python's own types; None for a missing one, and what is of no such type as it is."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":  # pandas.NA
        return None
    if isinstance(value, str):  # an enum of texts prints as its name
        return str.__str__(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return operator.index(value)
    if isinstance(value, float | np.floating) and value.__class__ is not np.longdouble:
        return float(value)
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        return _plain(value.item())
    return _plain(value.as_py()) if isinstance(value, pa.Scalar) else value


def _all_missing(entry: Array) -> bool:
    """Whether no entry has a value, of which there may be none."""
    if isinstance(entry, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(entry).all())
    return not entry.size or (entry.dtype == np.object_ and all(value is None for value in entry.flat))


def _too_large(name: str, value: int) -> BadInput:
    bound = f"most {_LARGEST}" if value > 0 else f"least {-_LARGEST - 1}"
    return BadInput(f"{name} must be at {bound}, not {value}.", hint=f"Record it as text: {name}=str(x).", field=name)


def _masked(name: str, entry: Array, missing: NDArray[np.bool_]) -> Array:
    """An entry whose missing values are NULL."""
    if name == "position":
        raise BadInput(
            "position must not contain missing entries.", hint="Leave tokens out with step(mask=…).", field=name
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
