"""Rows that memory holds: those of a journal, of a training that is run again, or of a test."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dualform.store.segment import Segment


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Stored rows (key_source.py), and a key source where they are float32."""

    identity: Hashable
    first_row: int
    content: NDArray[Any]
    """[rows, *shape], C-contiguous."""
    made: ClassVar[bool] = False
    segment: ClassVar[Segment | None] = None

    @property
    def rows(self) -> int:
        return len(self.content)

    @property
    def width(self) -> int:
        return int(np.prod(self.content.shape[1:]))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.content.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.content[start:stop]

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self.content, rows

    def shifted(self, rows: int) -> HeldRows:
        return replace(self, first_row=self.first_row + rows)

    def passing(self, *, first: bool = False) -> HeldRows:
        return self

    def verify(self) -> None:
        """Whoever read the rows held them against their checksum."""
