"""Key source "rows": float32 rows, which FAISS alone reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm, flat_index
from dualform.store.sources.key_format import KeyFormat, float32_rows
from dualform.store.sources.key_source import KeySource, StoredRows


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
