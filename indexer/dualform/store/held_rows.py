"""Rows that memory holds: those of a journal, of a training that is run again, or of a test."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class HeldRows:
    """A key source (key_source.py)."""

    identity: Hashable
    first_row: int
    content: NDArray[np.float32]
    """float32[rows, width], C-contiguous."""

    @property
    def rows(self) -> int:
        return len(self.content)

    @property
    def width(self) -> int:
        return int(self.content.shape[1])

    def matrix(self) -> NDArray[np.float32]:
        return self.content

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.content[start:stop]

    def holding(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.content
