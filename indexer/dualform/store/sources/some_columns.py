"""Some columns of a key source, as a view of a layer reads them. Shapes: n rows asked for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dualform.store.segment import Segment
from dualform.store.sources.key_source import KeySource
from dualform.store.sources.patches import PatchRows


def some_columns(source: KeySource, start: int, stop: int) -> KeySource:
    """The rows of a source, of which only the columns from `start` on are there, `stop` excluded."""
    if (start, stop) == (0, source.width):
        return source
    if isinstance(source, PatchRows) and (narrow := source.of_channels(start, stop)) is not None:
        return narrow
    return SomeColumns(source, start, stop)


@dataclass(frozen=True, eq=False)
class SomeColumns:
    """A key source (key_source.py)."""

    source: KeySource
    start: int
    stop: int
    made: ClassVar[bool] = True

    @property
    def identity(self) -> Hashable:
        return self.source.identity, self.start, self.stop

    @property
    def first_row(self) -> int:
        return self.source.first_row

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def segment(self) -> Segment | None:
        return self.source.segment

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.source.read(start, stop)[:, self.start : self.stop])

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        matrix, places = self.source.holding(rows)
        return np.ascontiguousarray(matrix[places, self.start : self.stop]), np.arange(len(rows))

    def shifted(self, rows: int) -> SomeColumns:
        return replace(self, source=self.source.shifted(rows))

    def passing(self, *, first: bool = False) -> SomeColumns:
        return replace(self, source=self.source.passing(first=first))

    def verify(self) -> None:
        self.source.verify()
