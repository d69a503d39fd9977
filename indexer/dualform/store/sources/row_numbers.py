"""Key source "row numbers": one integer a row, for keys that are 1 at one place and 0 elsewhere, as an embedding's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm, npy
from dualform.store.sources.key_format import Geometry, KeyFormat, described
from dualform.store.sources.key_source import KeySource, StoredRows
from dualform.store.sources.made_rows import MadeRows


class RowNumbers(KeyFormat, source="row numbers"):
    """Handed over as integers[n] from 0 to d_in - 1, stored as uint32[n]."""

    multiplied = False

    def __init__(self, d_in: int, geometry: Geometry) -> None:
        super().__init__(d_in, geometry)
        if d_in > 2**32:
            raise ValueError(f"it has {d_in} rows, more than 32 bits can number.")

    @property
    def numbers_a_row(self) -> int:
        """A question reads what the rows say, and makes no key of it."""
        return self.per_row

    @property
    def most_rows(self) -> int | None:
        return self.d_in

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return (npy("<u4"),)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.uint32]:
        if keys.dtype.kind not in "iu" or keys.ndim != 1:
            raise ValueError(f"its row numbers are {described(keys)}, and must be integers[n].")
        if len(keys) and not 0 <= keys.min() <= keys.max() < self.d_in:
            raise ValueError(f"its row numbers are {keys.min()} to {keys.max()}, but it has only {self.d_in} rows.")
        return keys.astype("<u4")

    def source(self, stored: StoredRows) -> KeySource:
        return OneHotRows(stored, stored.first_row, self.d_in)


class OneHotRows(MadeRows):
    """Float32 rows of uint32[rows]."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._one_hot(self.stored.read(start, stop))

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        matrix, places = self.stored.holding(rows)
        return self._one_hot(matrix[places])

    def _one_hot(self, numbers: NDArray[np.uint32]) -> NDArray[np.float32]:
        keys = np.zeros((len(numbers), self.width), dtype=np.float32)
        keys[np.arange(len(numbers)), numbers] = 1
        return keys
