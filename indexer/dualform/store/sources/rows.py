"""Keys stored as rows of numbers: float32, float16, bfloat16, or not at all.

Key source "bfloat16": keys of a training that computed the layer in bfloat16, in half the bytes of float32.

A bfloat16 number is the upper half of a float32 number whose lower half is zero, so that reading gives back the very
float32 rows that were handed over. Rows with any other lower half, as of a step outside autocast, are stored as "rows".

Key source "float16": keys of a training that computed the layer in float16, in half the bytes of float32.

Reading widens them to the very float32 rows that were handed over. Rows that float16 does not hold to the bit, as of a
step outside autocast, are stored as "rows".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.segment import MatrixForm, flat_index, npy
from dualform.store.sources.key_format import KeyFormat, KeySource, MadeRows, StoredRows, float32_rows


class FloatRows(KeyFormat, source="rows"):
    """Handed over and stored as float32[n, d_in]."""

    number_bytes = 4
    holds_values = True

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return (flat_index(self.d_in),)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.float32]:
        return float32_rows(keys, self.d_in)

    def source(self, stored: StoredRows) -> KeySource:
        return stored


class Absent(KeyFormat, source="none"):
    """It has no forms: nobody asks it for more."""

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return ()

    def count(self, keys: NDArray[Any]) -> int | None:
        """Of feature maps, nobody knows the patches."""
        return len(keys) if keys.ndim < 3 else None

    def accepted(self, keys: NDArray[Any]) -> NDArray[Any]:
        raise ValueError("it was to be recorded without keys.")

    def source(self, stored: StoredRows) -> KeySource:
        raise ValueError("it was recorded without keys.")


class Float16(KeyFormat, source="float16"):
    """Handed over as float32[n, d_in], stored as float16[n, d_in]; as float32 from where it would lose a bit."""

    number_bytes = 2
    holds_values = True

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return npy("<f2", self.d_in), flat_index(self.d_in)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.float32]:
        return float32_rows(keys, self.d_in)

    def encoded(self, keys: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        if form.dtype != np.float16:
            return keys
        with np.errstate(over="ignore", under="ignore"):
            halves = keys.astype("<f2")
        return halves if np.array_equal(_widened_float16(halves).view("<u4"), keys.view("<u4")) else None

    def source(self, stored: StoredRows) -> KeySource:
        return Float16Rows(stored, stored.first_row, self.d_in) if stored.dtype == np.float16 else stored


class Float16Rows(MadeRows):
    """Float32 rows of float16[rows, width]."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return _widened_float16(self.stored.read(start, stop))

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        matrix, places = self.stored.holding(rows)
        return _widened_float16(matrix[places])


def _widened_float16(halves: NDArray[Any]) -> NDArray[np.float32]:
    return halves.astype(np.float32)


_BITS = 16


class Bfloat16(KeyFormat, source="bfloat16"):
    """Handed over as float32[n, d_in], stored as uint16[n, d_in]; as float32 from where it would lose a bit."""

    number_bytes = 2
    holds_values = True

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return npy("<u2", self.d_in), flat_index(self.d_in)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.float32]:
        return float32_rows(keys, self.d_in)

    def encoded(self, keys: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        if form.dtype != np.uint16:
            return keys
        halves = keys.view("<u2")
        return None if halves[:, ::2].any() else halves[:, 1::2]

    def source(self, stored: StoredRows) -> KeySource:
        return Bfloat16Rows(stored, stored.first_row, self.d_in) if stored.dtype == np.uint16 else stored


class Bfloat16Rows(MadeRows):
    """Float32 rows of uint16[rows, width]."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return _widened_bfloat16(self.stored.read(start, stop))

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        matrix, places = self.stored.holding(rows)
        return _widened_bfloat16(matrix[places])


def _widened_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return np.left_shift(halves, _BITS, dtype="<u4").view("<f4")
