"""A column of lists: one for each extent, with an entry for each of its slots.

Shapes: E extents, n slots that are asked for, T slots of the space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.store.tables import joined


class Lists:
    """Entries by extent and place within it. An extent without a list has NULLs."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        lengths = [np.asarray(chunk.value_lengths().fill_null(0), dtype=np.int64) for chunk in chunks]
        self.given: NDArray[np.bool_] = _joined([np.asarray(chunk.is_valid()) for chunk in chunks], np.bool_)
        """bool[E]: which extents have a list."""
        self._lengths = _joined(lengths, np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        parts = [chunk.flatten() for chunk in chunks]
        self._values = joined(parts, column.type.value_type)

    def at(self, extent: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Numbers of [n] slots, and which of them are there; a number that is not there is 0."""
        there = self.given[extent]
        place = np.where(there, self._starts[extent] + index, 0)
        numbers, valid = self._numbers
        if not len(numbers):
            return np.zeros(len(extent), dtype=np.int64), np.zeros(len(extent), dtype=bool)
        return np.where(there, numbers[place], 0), there if valid is None else there & valid[place]

    @property
    def _numbers(self) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        if not hasattr(self, "_held"):
            values = self._values
            valid = np.asarray(values.is_valid()) if values.null_count else None
            self._held = np.asarray(values.fill_null(0) if values.null_count else values), valid
        return self._held

    def take(self, extent: NDArray[np.int64], index: NDArray[np.int64]) -> pa.Array:
        """[n] entries, NULL where there is none."""
        there = self.given[extent]
        place = pa.array(np.where(there, self._starts[extent] + index, 0), mask=~there)
        return self._values.take(place)

    def between(self, slots: NDArray[np.int64], start: int, stop: int) -> pa.Array | None:
        """As `every` the slots from start to stop, copying nothing; None where that needs the places of each."""
        return self._values.slice(start, stop - start) if np.array_equal(self._lengths, slots) else None

    def every(self, slots: NDArray[np.int64]) -> pa.Array:
        """[T] entries; `slots` is int64[E]: how many each extent has."""
        if np.array_equal(self._lengths, slots):
            return self._values
        place = np.repeat(self._starts - (np.cumsum(slots) - slots), slots) + np.arange(int(slots.sum()))
        there = np.repeat(self.given, slots)
        return self._values.take(pa.array(np.where(there, place, 0), mask=~there))


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
