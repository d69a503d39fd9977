"""The two kinds of matrix file in a memory.

Float32 keys are a FAISS `IndexFlatIP` file, so that `faiss.read_index` alone opens it; everything else is a `.npy`
file, so that `numpy.load` alone opens it. Both are a header that states the number of rows, then the rows.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

_INNER_PRODUCT = 0


@dataclass(frozen=True)
class MatrixForm:
    """What a matrix file is, whatever the number of its rows: float32 vectors for FAISS, or arrays for NumPy."""

    suffix: str
    """Of the file's name: "faiss", "npy", or what tells this form from others of its source and ends in ".npy"."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""

    @cached_property
    def width(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    @cached_property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def header(self, rows: int) -> bytes:
        """The bytes before the rows, of a length that does not depend on the number of rows."""
        return _flat_index_header(rows, self.width) if self.suffix == "faiss" else _npy_header(rows, self)


def flat_index(width: int) -> MatrixForm:
    """A FAISS IndexFlatIP of float32[rows, width]."""
    return MatrixForm("faiss", np.dtype("<f4"), (width,))


def npy(dtype: str, *shape: int) -> MatrixForm:
    """A NumPy file of [rows, *shape]."""
    return MatrixForm("npy", np.dtype(dtype), shape)


def _flat_index_header(rows: int, width: int) -> bytes:
    """The 45 bytes before the vectors of a FAISS IndexFlatIP: kind, shape, training state, metric, size."""
    unused = 1 << 20
    return struct.pack("<4siqqq?iQ", b"IxFI", width, rows, unused, unused, True, _INNER_PRODUCT, rows * width)


def _npy_header(rows: int, form: MatrixForm) -> bytes:
    """NumPy leaves room for the row count to grow."""
    stream = io.BytesIO()
    contents = {"descr": form.dtype.str, "fortran_order": False, "shape": (rows, *form.shape)}
    np.lib.format.write_array_header_1_0(stream, contents)
    return stream.getvalue()
