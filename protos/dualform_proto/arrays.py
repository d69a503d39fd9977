"""Arrays, matrices and tables <-> bytes and messages: little-endian, row after row, every length checked.

A table has one array for each column, and a byte a row for NULLs. Groups are a table of their keys. Decoded arrays are
copies in the machine's own byte order, which the caller owns. BadInput is raised for lengths and types that do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.errors import BadInput
from dualform_proto.v1 import dualform_pb2 as pb

WIRE_TYPES: dict[pb.ElementType.ValueType, np.dtype[Any]] = {
    pb.ELEMENT_TYPE_FLOAT16: np.dtype("<f2"),
    pb.ELEMENT_TYPE_FLOAT32: np.dtype("<f4"),
    pb.ELEMENT_TYPE_FLOAT64: np.dtype("<f8"),
    pb.ELEMENT_TYPE_INT64: np.dtype("<i8"),
    pb.ELEMENT_TYPE_INT32: np.dtype("<i4"),
    pb.ELEMENT_TYPE_INT16: np.dtype("<i2"),
    pb.ELEMENT_TYPE_INT8: np.dtype("i1"),
    pb.ELEMENT_TYPE_UINT64: np.dtype("<u8"),
    pb.ELEMENT_TYPE_UINT32: np.dtype("<u4"),
    pb.ELEMENT_TYPE_UINT16: np.dtype("<u2"),
    pb.ELEMENT_TYPE_UINT8: np.dtype("u1"),
    pb.ELEMENT_TYPE_BOOL: np.dtype("?"),
    pb.ELEMENT_TYPE_COMPLEX64: np.dtype("<c8"),
    pb.ELEMENT_TYPE_COMPLEX128: np.dtype("<c16"),
}
ELEMENT_TYPES = {dtype: element for element, dtype in WIRE_TYPES.items()}
_LONGEST = 2**31
"""Most rows or columns of a matrix. The bytes of an empty one do not bound them."""
_KEYS = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}
"""Types of keys of groups, by the kind of NumPy's. Integers among floats are floats."""
_CAST = "In SQL, cast it: CAST(... AS DOUBLE), CAST(... AS BIGINT) or CAST(... AS VARCHAR)."


def encode_numbers(array: NDArray[Any]) -> bytes:
    """The numbers of an array, in row-major order."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_numbers(data: bytes, dtype: Any, field: str, count: int | None = None) -> NDArray[Any]:
    """`dtype[count]`; count None takes as many as the bytes hold."""
    wire = np.dtype(dtype).newbyteorder("<")
    if count is None and len(data) % wire.itemsize:
        raise BadInput(
            f"{field} holds {len(data)} bytes, no multiple of the {wire.itemsize} that one {wire.name} takes.",
            field=field,
        )
    if count is not None and (count < 0 or len(data) != count * wire.itemsize):
        raise BadInput(
            f"{field} holds {len(data)} bytes where {count} numbers of type {wire.name} take {count * wire.itemsize}.",
            field=field,
        )
    if wire.kind == "b":
        # A byte other than 0 and 1 is no boolean to NumPy: what it then computes is undefined.
        return np.frombuffer(data, dtype=np.uint8).astype(np.bool_)
    return np.frombuffer(data, dtype=wire).astype(wire.newbyteorder("="), copy=True)


def encode_matrix(array: NDArray[Any]) -> pb.Matrix:
    """A matrix of any type in WIRE_TYPES."""
    rows, cols = array.shape
    return pb.Matrix(rows=rows, cols=cols, dtype=element_type(array.dtype, "matrix"), data=encode_numbers(array))


def decode_matrix(message: pb.Matrix, dtype: Any, field: str) -> NDArray[Any]:
    """`dtype[rows, cols]`."""
    expected = element_type(np.dtype(dtype), field)
    if message.dtype != expected:
        named = pb.ElementType.Name(expected)
        raise BadInput(f"{field} is of element type {message.dtype}, not {expected} ({named}).", field=field)
    if message.rows < 0 or message.cols < 0:
        raise BadInput(f"{field} has {message.rows} rows and {message.cols} columns.", field=field)
    numbers = decode_numbers(message.data, dtype, field, message.rows * message.cols)
    if max(message.rows, message.cols) > _LONGEST:
        raise BadInput(f"{field} has {message.rows} rows and {message.cols} columns.", field=field)
    return numbers.reshape(message.rows, message.cols)


def decode_rows(message: pb.Matrix, field: str) -> NDArray[np.float32]:
    """float32[n, d] of a question. Refuses a width of 0: rows of it take no bytes, so there could be any number."""
    if message.cols < 1:
        raise BadInput(f"{field} are 0 numbers wide.", field=field)
    return decode_matrix(message, np.float32, field)


def element_type(dtype: np.dtype[Any], field: str, hint: str = "") -> pb.ElementType.ValueType:
    """The wire's name of a NumPy type; the error for one that it lacks has the hint."""
    element = ELEMENT_TYPES.get(dtype.newbyteorder("<"))
    if element is None:
        raise BadInput(f"{field} is of type {dtype}, which the wire does not carry.", hint=hint, field=field)
    return element


def wire_type(element: pb.ElementType.ValueType, field: str) -> np.dtype[Any]:
    if element not in WIRE_TYPES:
        raise BadInput(f"{field} is of element type {element}, which this version does not know.")
    return WIRE_TYPES[element]


def encode_columns(columns: Mapping[str, NDArray[Any]]) -> pb.Columns:
    """Numbers and booleans, plain or masked, and texts."""
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
    """The table, in the order of its columns, each of which has `rows` values."""
    if message.rows < 0:
        raise BadInput(f"a table has {message.rows} rows.")
    return {column.name: _decode_column(column, message.rows) for column in message.columns}


def _decode_column(column: pb.Column, rows: int) -> NDArray[Any]:
    field = f"column {column.name!r}"
    nulls = decode_numbers(column.nulls, np.bool_, field, rows) if column.nulls else None
    if column.type == pb.ELEMENT_TYPE_TEXT:
        if len(column.texts) != rows:
            raise BadInput(f"{field} holds {len(column.texts)} texts where the table has {rows} rows.")
        texts = _objects(column.texts)
        if nulls is not None:
            texts[nulls] = None
        return texts
    numbers = decode_numbers(column.data, wire_type(column.type, field), field, rows)
    if nulls is None and not column.nullable:
        return numbers
    return np.ma.MaskedArray(numbers, mask=np.zeros(rows, dtype=bool) if nulls is None else nulls)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def encode_groups(by: Sequence[str], groups: Sequence[GroupKey]) -> pb.Columns:
    """One row for each group, one column for each name in `by`."""
    columns = [_encode_column(name, _key_column(name, [key[place] for key in groups])) for place, name in enumerate(by)]
    return pb.Columns(rows=len(groups), columns=columns)


def _key_column(name: str, values: list[Any]) -> NDArray[Any]:
    """Python values of one type, None for NULL, as a column that brings them back unchanged."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return _objects(values)
    numbers = np.array([present[0] if value is None else value for value in values])
    dtype = _KEYS.get(numbers.dtype.kind)
    if dtype is None:
        raise _not_carried(name, present[0], "Group by a column of another type.")
    nulls = np.array([value is None for value in values], dtype=bool)
    numbers = numbers.astype(dtype)
    return np.ma.MaskedArray(numbers, mask=nulls) if nulls.any() else numbers


def _not_carried(name: str, value: Any, hint: str) -> BadInput:
    kind = type(value).__name__
    return BadInput(
        f"column {name!r} holds a value of type {kind}, which the wire does not carry.", hint=hint, field=name
    )


def decode_groups(message: pb.Columns) -> tuple[tuple[str, ...], tuple[GroupKey, ...]]:
    """The names of `by`, and a tuple of plain Python values for each group."""
    columns = decode_columns(message)
    lists = [column.tolist() for column in columns.values()]
    if any(len(values) != message.rows for values in lists) or (message.rows and not lists):
        raise BadInput(f"{message.rows} groups have keys of another number.")
    return tuple(columns), tuple(zip(*lists, strict=True))
