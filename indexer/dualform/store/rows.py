"""The keys or values of one layer, read segment by segment and verified when first read.

Shapes: rows of float32[width]; T slots.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import Header, read_matrix


@dataclass(frozen=True)
class Segment:
    """One committed matrix file."""

    path: Path
    first_row: int
    rows: int
    bytes: int
    checksum: str


class SegmentCache:
    """Segments held in memory, the least recently used dropped beyond a number of bytes."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = memory_bytes() // 2 if most_bytes is None else most_bytes
        self._held: OrderedDict[Path, NDArray[np.float32]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, path: Path, read: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The matrix of a segment, read where it is not held."""
        with self._lock:
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path]
        matrix = read()
        with self._lock:
            if path not in self._held and matrix.nbytes <= self._most:
                self._held[path] = matrix
                self._bytes += matrix.nbytes
                while self._bytes > self._most:
                    self._bytes -= self._held.popitem(last=False)[1].nbytes
        return matrix


def memory_bytes() -> int:
    """What the machine has, or what its container may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit, or "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


class Rows:
    """A matrix that lies on disk in segments."""

    def __init__(self, segments: Sequence[Segment], width: int, header: Header, cache: SegmentCache) -> None:
        self.segments, self.width, self._header, self._cache = segments, width, header, cache
        self._starts = [segment.first_row for segment in segments]
        self.rows = segments[-1].first_row + segments[-1].rows if segments else 0

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width], aligned and C-contiguous; not to be written to.

        Raises Damaged, naming the file, where a segment is not what was committed.
        """
        parts = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            segment = self.segments[index]
            end = min(stop, segment.first_row + segment.rows)
            parts.append(self.matrix(segment)[start - segment.first_row : end - segment.first_row])
            start, index = end, index + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.width), dtype=np.float32)

    def blocks(self, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Blocks of `size` rows (the last one smaller) with their first row, wherever segments end."""
        for start in range(0, self.rows, size):
            yield start, self.block(start, min(start + size, self.rows))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(rows), width] of any rows in any order."""
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        cuts = np.searchsorted(wanted, [*self._starts, self.rows])
        for segment, (first, last) in zip(self.segments, pairwise(cuts), strict=True):
            if first < last:
                taken[order[first:last]] = self.matrix(segment)[wanted[first:last] - segment.first_row]
        return taken

    def matrix(self, segment: Segment) -> NDArray[np.float32]:
        """float32[segment.rows, width], aligned and C-contiguous; not to be written to. Raises Damaged as `block`."""
        return self._cache.get(
            segment.path,
            lambda: read_matrix(segment.path, segment.rows, self.width, self._header, segment.checksum),
        )


class Keys(Rows):
    """A layer's keys: one row per slot, or one per distinct key where the layer's inputs repeat."""

    def __init__(
        self,
        segments: Sequence[Segment],
        width: int,
        header: Header,
        cache: SegmentCache,
        slots: int,
        row_of_slot: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(segments, width, header, cache)
        self.slots = slots
        """T."""
        self.row_of_slot = row_of_slot
        """int64[T]: the row of each slot's key; None where row and slot are the same."""

    def of_slots(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(slots), width]: the keys of any slots in any order."""
        return self.take(slots if self.row_of_slot is None else self.row_of_slot[slots])

    def slot_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width]: the keys of a range of slots."""
        if self.row_of_slot is None:
            return self.block(start, stop)
        return self.take(self.row_of_slot[start:stop])
