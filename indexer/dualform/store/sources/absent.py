"""Key source "none": no keys are stored, only a digest of them a step, for a training that is run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm
from dualform.store.sources.key_format import KeyFormat
from dualform.store.sources.key_source import KeySource, StoredRows


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
