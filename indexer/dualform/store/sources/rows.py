"""Keys stored as rows of numbers: float32, float16, bfloat16, or not at all.

The half formats are for trainings that computed the layer in half precision: they take half the bytes of float32, and
reading widens them to exactly the float32 rows that were handed over. Rows that a half format cannot hold to the bit,
as those of a step outside autocast, are stored as "rows".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.segment import MatrixForm, flat_index, npy
from dualform.store.sources.key_format import DecodedRows, KeyFormat, KeySource, StoredRows, float32_rows


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


class Float16(FloatRows, source="float16"):
    """Handed over as float32[n, d_in], stored as float16[n, d_in]; as float32 from where it would lose a bit."""

    number_bytes = 2
    half: ClassVar[str] = "<f2"
    """The type of a stored number."""

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return npy(self.half, self.d_in), *super().forms

    def encoded(self, keys: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        return self.narrowed(keys) if form.dtype == self.half else keys

    def source(self, stored: StoredRows) -> KeySource:
        if stored.dtype != self.half:
            return stored
        return DecodedRows(stored, stored.first_row, self.d_in, self.widened)

    @staticmethod
    def narrowed(keys: NDArray[Any]) -> NDArray[Any] | None:
        """float32 as half the bytes; None where a bit would be lost."""
        with np.errstate(over="ignore", under="ignore"):
            halves = keys.astype("<f2")
        return halves if np.array_equal(halves.astype(np.float32).view("<u4"), keys.view("<u4")) else None

    @staticmethod
    def widened(halves: NDArray[Any]) -> NDArray[np.float32]:
        """Stored numbers as float32."""
        return halves.astype(np.float32)


class Bfloat16(Float16, source="bfloat16"):
    """As Float16. NumPy has no bfloat16: it is stored as uint16[n, d_in], the upper half of each float32 number."""

    half = "<u2"

    @staticmethod
    def narrowed(keys: NDArray[Any]) -> NDArray[Any] | None:
        halves = keys.view("<u2")
        return None if halves[:, ::2].any() else halves[:, 1::2]

    @staticmethod
    def widened(halves: NDArray[Any]) -> NDArray[np.float32]:
        bits: NDArray[np.uint32] = np.left_shift(halves, 16, dtype="<u4")
        return bits.view("<f4")
