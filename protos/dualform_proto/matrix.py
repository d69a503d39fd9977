"""Arrays of numbers <-> bytes and `Matrix` messages: little-endian, rows one after another, every length checked.

Decoded arrays are copies in the machine's own byte order, which the caller owns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
_LONGEST = 2**31
"""Rows or columns of a matrix: one that is empty says nothing of them by its bytes."""
ELEMENT_TYPES = {dtype: element for element, dtype in WIRE_TYPES.items()}


def encode_numbers(array: NDArray[Any]) -> bytes:
    """The numbers of an array, in row-major order."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_numbers(data: bytes, dtype: Any, field: str, count: int | None = None) -> NDArray[Any]:
    """`dtype[count]`; count None takes as many as the bytes hold. Raises BadInput where the length does not fit."""
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
    """`dtype[rows, cols]`. Raises BadInput where the message holds another type or another number of bytes."""
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


def element_type(dtype: np.dtype[Any], field: str, hint: str = "") -> pb.ElementType.ValueType:
    """The wire's name of a NumPy type; raises BadInput where it has none, with what to do then."""
    element = ELEMENT_TYPES.get(dtype.newbyteorder("<"))
    if element is None:
        raise BadInput(
            f"{field} is of type {dtype}, which the wire does not carry.",
            hint=hint,
            field=field,
        )
    return element
