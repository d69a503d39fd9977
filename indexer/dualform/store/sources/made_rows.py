"""Keys that are made of stored rows each time they are read. Shapes: n rows asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dualform.store.segment import Segment
from dualform.store.sources.key_source import StoredRows


@dataclass(frozen=True, eq=False)
class MadeRows(ABC):
    """A key source (key_source.py) but for how keys are made, which a kind of its own says."""

    stored: StoredRows
    first_row: int
    width: int
    made: ClassVar[bool] = True

    @property
    def identity(self) -> Hashable:
        return self.stored.identity

    @property
    def segment(self) -> Segment | None:
        return self.stored.segment

    @property
    def rows(self) -> int:
        return self.stored.rows

    @abstractmethod
    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[n, width], C-contiguous: the keys of ascending rows, counted from the first one here."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.make(np.arange(start, stop))

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        distinct, places = np.unique(rows, return_inverse=True)
        return self.make(distinct), places

    def shifted(self, rows: int) -> Self:
        return replace(self, first_row=self.first_row + rows)

    def passing(self, *, first: bool = False) -> Self:
        return replace(self, stored=self.stored.passing(first=first))

    def verify(self) -> None:
        self.stored.verify()
