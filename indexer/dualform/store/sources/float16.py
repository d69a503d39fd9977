"""Key source "float16": keys of a training that computed the layer in float16, in half the bytes of float32.

Reading widens them to the very float32 rows that were handed over. Rows that float16 does not hold to the bit, as of a
step outside autocast, are stored as "rows".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm, flat_index, npy
from dualform.store.sources.key_format import KeyFormat, float32_rows
from dualform.store.sources.key_source import KeySource, StoredRows
from dualform.store.sources.made_rows import MadeRows


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
        return halves if np.array_equal(_widened(halves).view("<u4"), keys.view("<u4")) else None

    def source(self, stored: StoredRows) -> KeySource:
        return Float16Rows(stored, stored.first_row, self.d_in) if stored.dtype == np.float16 else stored


class Float16Rows(MadeRows):
    """Float32 rows of float16[rows, width]."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return _widened(self.stored.read(start, stop))

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        matrix, places = self.stored.holding(rows)
        return _widened(matrix[places])


def _widened(halves: NDArray[Any]) -> NDArray[np.float32]:
    return halves.astype(np.float32)
