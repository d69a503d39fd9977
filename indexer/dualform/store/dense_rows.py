"""Float32 rows in a segment's file: the plainest key source."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import Header
from dualform.store.rows import SegmentCache
from dualform.store.segment import Segment, SegmentBuffer


@dataclass(frozen=True, eq=False)
class DenseRows:
    """A key source (key_source.py): what of the file was read stays in the cache while there is room."""

    segment: Segment
    width: int
    header: Header
    cache: SegmentCache

    @property
    def identity(self) -> Hashable:
        return self.segment.path

    @property
    def first_row(self) -> int:
        return self.segment.first_row

    @property
    def rows(self) -> int:
        return self.segment.rows

    def matrix(self) -> NDArray[np.float32]:
        return self.read(0, self.rows)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        buffer = self._buffer()
        if buffer.read(start, stop):
            self.cache.settle()
        return buffer.matrix[start:stop]

    def holding(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        buffer = self._buffer()
        if buffer.read_rows(rows):
            self.cache.settle()
        return buffer.matrix

    def verify(self) -> None:
        """Hold every block against its checksum, and keep none. Raises Damaged, naming the file."""
        SegmentBuffer(self.segment, self.width, self.header).read(0, max(self.rows, 1))

    def _buffer(self) -> SegmentBuffer:
        return self.cache.get(self.segment, partial(SegmentBuffer, self.segment, self.width, self.header))
