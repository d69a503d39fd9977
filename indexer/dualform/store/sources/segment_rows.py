"""Rows in a segment's file, as they are stored there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.segment import SMALL_BYTES, MatrixForm, Segment, SegmentBuffer, SegmentCache, read_rows

FEW_ROWS = 64
"""Rows that are copied where nothing is kept: memory for whole blocks costs more than reading them."""
_DENSE = 7 / 8
"""Of a range's rows: if more of them are wanted, the range is read as a whole."""


@dataclass(frozen=True, eq=False)
class SegmentRows:
    """Stored rows (key_format.py): what of the file was read stays in the cache while there is room."""

    segment: Segment
    form: MatrixForm
    cache: SegmentCache
    passing_as: object | None = None
    """What stands for a pass, of whose reading little stays in the cache, and briefly; None where it stays."""
    made: ClassVar[bool] = False

    @property
    def identity(self) -> Hashable:
        return self.segment.identity

    @property
    def first_row(self) -> int:
        return self.segment.first_row

    @property
    def rows(self) -> int:
        return self.segment.rows

    @property
    def width(self) -> int:
        return self.form.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.form.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if self._in_pieces(start, stop):
            return self.cache.recent.rows(self.passing_as, self.segment, self.form, start, stop)
        if start < stop and self.form.row_bytes and self._passes():
            return read_rows(self.segment, self.form, start, stop)
        buffer = self._buffer()
        if buffer.read(start, stop):
            self.cache.settle(self.segment, buffer)
        return buffer.matrix[start:stop]

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if self._passes() and 0 < len(rows) <= FEW_ROWS:
            return self.cache.recent.some(self.passing_as, self.segment, self.form, rows), np.arange(len(rows))
        if len(rows) and self._passes():
            first, last = int(rows.min()), int(rows.max()) + 1
            if len(rows) > _DENSE * (last - first) or self._in_pieces(first, last):
                return self.read(first, last), rows - first
        buffer = self._buffer()
        if buffer.read_rows(rows):
            self.cache.settle(self.segment, buffer)
        return buffer.matrix, rows

    def shifted(self, rows: int) -> SegmentRows:
        return replace(self, segment=replace(self.segment, first_row=self.first_row + rows))

    def passing(self, *, first: bool = False) -> SegmentRows:
        kept = self.cache.shares or (first and self.cache.passed(self.segment))
        return self if kept else replace(self, passing_as=object())

    def verify(self) -> None:
        SegmentBuffer(self.segment, self.form).read(0, max(self.rows, 1))

    def _in_pieces(self, start: int, stop: int) -> bool:
        """Whether a pass takes so few rows at a time that several pieces share a block."""
        return 0 < (stop - start) * self.form.row_bytes <= SMALL_BYTES and self._passes()

    def _passes(self) -> bool:
        """Whether rows are read past the cache."""
        return self.passing_as is not None and self._held() is None

    def _buffer(self) -> SegmentBuffer:
        if self.passing_as is None:
            return self.cache.get(self.segment, partial(SegmentBuffer, self.segment, self.form))
        return self._held() or SegmentBuffer(self.segment, self.form)

    def _held(self) -> SegmentBuffer | None:
        """What the cache has of the file, if that is all of it."""
        held = self.cache.find(self.segment)
        return held if held is not None and held.whole else None
