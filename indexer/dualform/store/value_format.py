"""How a layer's values are stored: as keys of a source are, but that float32 rows are a NumPy file, too.

Shapes: n entries of a batch; d_out of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm, npy
from dualform.store.sources import FORMATS
from dualform.store.sources.key_source import KeySource, StoredRows

VALUE_SOURCES = tuple(name for name, own in FORMATS.items() if own.holds_values)
"""The key sources whose form values have, too."""


class ValueFormat:
    """Values are handed over as float32[n, d_out], and every question reads them so."""

    def __init__(self, source: str, d_out: int) -> None:
        """`source`: one of VALUE_SOURCES."""
        self._rows = FORMATS[source](d_out, {})
        *halves, _ = self._rows.forms
        # Both kinds of file are NumPy's: the name of the one of halves says what they are.
        halves = [replace(form, suffix=f"{source}.npy") for form in halves]
        self.forms: Sequence[MatrixForm] = (*halves, npy("<f4", d_out))
        """The forms that files of values have. The last one holds any values, the one before it some."""

    def encoded(self, values: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        """Values as rows of a form; None where it cannot hold them to the bit."""
        return self._rows.encoded(np.ascontiguousarray(values, dtype=np.float32), form)

    def source(self, stored: StoredRows) -> KeySource:
        """The values that stored rows, of any of the forms, stand for."""
        return self._rows.source(stored)
