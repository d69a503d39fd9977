"""Arguments of the compiled loops: the addresses of arrays, and structures that keep their arrays alive."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray


def address(array: NDArray[Any], dtype: DTypeLike) -> int:
    """Where an array's numbers begin. Raises TypeError for what the loops, which check nothing, would misread."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        layout = "contiguous" if array.flags.c_contiguous else "scattered"
        raise TypeError(f"a compiled loop wants contiguous {np.dtype(dtype)}, and got {layout} {array.dtype}.")
    return array.ctypes.data


def rows_address(matrix: NDArray[Any], dtype: DTypeLike) -> tuple[int, int]:
    """Where a matrix begins, and the numbers from one row to the next. Raises TypeError as `address`."""
    size = matrix.itemsize
    if matrix.dtype != dtype or matrix.ndim != 2 or (matrix.shape[1] > 1 and matrix.strides[1] != size):
        raise TypeError(
            f"a compiled loop wants whole rows of {np.dtype(dtype)}, and got {matrix.dtype} {matrix.strides}."
        )
    return matrix.ctypes.data, matrix.strides[0] // size


class _Arrays(ctypes.Structure):
    """Takes arrays (None for a null pointer) and numbers in the order of its fields, and keeps the arrays alive."""

    DTYPES: ClassVar[dict[str, Any]] = {}
    """Of the fields that are arrays."""

    def __init__(self, *values: NDArray[Any] | int | None) -> None:
        names = [name for name, *_ in self._fields_]
        super().__init__(*(self._plain(name, value) for name, value in zip(names, values, strict=True)))
        self.kept_alive = values

    def _plain(self, name: str, value: NDArray[Any] | int | None) -> int | None:
        return address(value, self.DTYPES[name]) if isinstance(value, np.ndarray) else value


class KeyCodes(_Arrays):
    """keys_t of kernels.h."""

    _fields_ = (
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("low", c_void_p),
        ("residual", c_void_p),
        ("length", c_void_p),
        ("group", c_void_p),
        ("rows", c_int64),
        ("words", c_int64),
        ("first", c_int64),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        "codes": np.uint8,
        **dict.fromkeys(("scale", "low", "residual", "length"), np.float32),
        "group": np.int32,
    }


class QueryCodes(_Arrays):
    """queries_t of kernels.h."""

    _fields_ = (
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("fine", c_void_p),
        ("sum", c_void_p),
        ("length", c_void_p),
        ("residual", c_void_p),
        ("slack", c_void_p),
        ("count", c_int64),
        ("columns", c_int64),
        ("most", c_void_p),
        ("least", c_void_p),
        ("spread", c_void_p),
        ("apart", c_int64),
        ("absolute", c_int32),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        "codes": np.int8,
        **dict.fromkeys(("scale", "fine", "sum", "length", "residual", "slack", "most", "least", "spread"), np.float32),
    }


class CodeProducts(_Arrays):
    """products_t of kernels.h."""

    _fields_ = (
        ("of_row", c_void_p),
        ("of_query", c_void_p),
        ("products", c_void_p),
        ("errors", c_void_p),
        ("apart", c_int64),
    )
    DTYPES: ClassVar[dict[str, Any]] = dict.fromkeys(("of_row", "of_query", "products", "errors"), np.float32)


class Candidates(_Arrays):
    """One worker's candidates in a screen: candidates_t of kernels.h."""

    _fields_ = (
        ("k", c_int64),
        ("groups", c_int64),
        ("capacity", c_int64),
        ("best", c_void_p),
        ("held", c_void_p),
        ("floors", c_void_p),
        ("rows", c_void_p),
        ("high", c_void_p),
        ("counts", c_void_p),
        ("crowded", c_void_p),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("best", "floors", "high"), np.float32),
        **dict.fromkeys(("held", "rows", "counts"), np.int64),
        "crowded": np.uint8,
    }


class Runs(_Arrays):
    """runs_t of kernels.h."""

    _fields_ = (("starts", c_void_p), ("groups", c_void_p), ("times", c_void_p), ("count", c_int64))
    DTYPES: ClassVar[dict[str, Any]] = {"starts": np.int64, "groups": np.int64, "times": np.float64}


class Scores(ctypes.Structure):
    """scores_t of kernels.h."""

    _fields_ = (
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("base", c_void_p),
        ("apart", c_int64),
        ("base_apart", c_int64),
        ("sums_apart", c_int64),
        ("columns", c_int64),
    )


class AdamUpdate(ctypes.Structure):
    """adam_t of kernels.h."""

    _fields_ = (
        ("sign", c_double),
        ("coupled", c_double),
        ("share", c_double),
        ("rest", c_double),
        ("share_of_squares", c_double),
        ("rest_of_squares", c_double),
        ("correction", c_double),
        ("rate", c_double),
        ("eps", c_double),
        ("left", c_double),
        ("rounds", c_int32),
    )
