"""Tables <-> `Columns` messages: one array per column, NULLs told by a byte a row. Groups are tables of their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.errors import BadInput
from dualform_proto.matrix import WIRE_TYPES, decode_numbers, element_type, encode_numbers
from dualform_proto.v1 import dualform_pb2 as pb

_CAST = "In SQL, cast it: CAST(... AS DOUBLE), CAST(... AS BIGINT) or CAST(... AS VARCHAR)."


def encode_columns(columns: Mapping[str, NDArray[Any]]) -> pb.Columns:
    """Numbers and booleans, plain or masked, and texts. Raises BadInput where a column holds anything else."""
    rows = len(next(iter(columns.values()))) if columns else 0
    return pb.Columns(rows=rows, columns=[_encode_column(name, column) for name, column in columns.items()])


def _encode_column(name: str, column: NDArray[Any]) -> pb.Column:
    if column.dtype.kind in "OUT":
        return _encode_texts(name, column)
    message = pb.Column(name=name, type=element_type(column.dtype, f"column {name!r}", _CAST))
    if isinstance(column, np.ma.MaskedArray):
        nulls = np.ma.getmaskarray(column)
        message.nullable = True
        message.nulls = encode_numbers(nulls) if nulls.any() else b""
        column = np.where(nulls, np.zeros((), column.dtype), column.data)
    message.data = encode_numbers(column)
    return message


def _encode_texts(name: str, column: NDArray[Any]) -> pb.Column:
    values = column.tolist()
    nulls = np.array([value is None for value in values], dtype=bool)
    for value in values:
        if value is not None and not isinstance(value, str):
            raise _not_carried(name, value, "In SQL, cast it: CAST(... AS VARCHAR).")
    return pb.Column(
        name=name,
        type=pb.ELEMENT_TYPE_TEXT,
        texts=["" if value is None else value for value in values],
        nulls=encode_numbers(nulls) if nulls.any() else b"",
    )


def decode_columns(message: pb.Columns) -> dict[str, NDArray[Any]]:
    """The table, in the order of its columns. Raises BadInput where a column is shorter or longer than `rows`."""
    if message.rows < 0:
        raise BadInput(f"a table has {message.rows} rows.")
    return {column.name: _decode_column(column, message.rows) for column in message.columns}


def _decode_column(column: pb.Column, rows: int) -> NDArray[Any]:
    field = f"column {column.name!r}"
    nulls = decode_numbers(column.nulls, np.bool_, field, rows) if column.nulls else None
    if column.type == pb.ELEMENT_TYPE_TEXT:
        if len(column.texts) != rows:
            raise BadInput(f"{field} holds {len(column.texts)} texts where the table has {rows} rows.")
        texts = np.empty(rows, dtype=object)
        texts[:] = column.texts
        if nulls is not None:
            texts[nulls] = None
        return texts
    if column.type not in WIRE_TYPES:
        raise BadInput(f"{field} is of element type {column.type}, which this version does not know.")
    numbers = decode_numbers(column.data, WIRE_TYPES[column.type], field, rows)
    if nulls is None and not column.nullable:
        return numbers
    mask = np.zeros(rows, dtype=bool) if nulls is None else nulls
    return np.ma.MaskedArray(numbers, mask=mask)


def encode_groups(by: Sequence[str], groups: Sequence[GroupKey]) -> pb.Columns:
    """One row per group, one column per name in `by`. Raises BadInput for values that the wire does not carry."""
    message = pb.Columns(rows=len(groups))
    for place, name in enumerate(by):
        message.columns.append(_encode_column(name, _key_column(name, [group[place] for group in groups])))
    return message


def _key_column(name: str, values: list[Any]) -> NDArray[Any]:
    """Python values of one type, None for NULL, as a column that brings them back unchanged."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return texts
    dtype = _key_type(name, present)
    nulls = np.array([value is None for value in values], dtype=bool)
    numbers = np.array([present[0] if value is None else value for value in values], dtype=dtype)
    return np.ma.MaskedArray(numbers, mask=nulls) if nulls.any() else numbers


def _key_type(name: str, present: list[Any]) -> np.dtype[Any]:
    """The type of the wire whose numbers are such values; integers among floats are floats."""
    if all(isinstance(value, bool | np.bool_) for value in present):
        return np.dtype(np.bool_)
    if all(isinstance(value, int | float | np.number) for value in present):
        return np.dtype(np.float64 if any(isinstance(value, float | np.floating) for value in present) else np.int64)
    kinds = {type(value) for value in present}
    found = [dtype for dtype in WIRE_TYPES.values() if kinds == {type(np.zeros((), dtype).item())}]
    if not found:
        raise _not_carried(name, present[0], "Group by a column of another type.")
    return found[0]


def _not_carried(name: str, value: Any, hint: str) -> BadInput:
    kind = type(value).__name__
    return BadInput(
        f"column {name!r} holds a value of type {kind}, which the wire does not carry.", hint=hint, field=name
    )


def decode_groups(message: pb.Columns) -> tuple[tuple[str, ...], tuple[GroupKey, ...]]:
    """The names of `by` and one tuple of plain Python values per group."""
    columns = decode_columns(message)
    lists = [column.tolist() for column in columns.values()]
    if any(len(values) != message.rows for values in lists) or (message.rows and not lists):
        raise BadInput(f"{message.rows} groups have keys of another number.")
    return tuple(columns), tuple(zip(*lists, strict=True))
