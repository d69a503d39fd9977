"""The keys or values of one layer, by entry: the slots that the layer has are its entries, numbered in slot order.

Shapes: rows of float32[width]; H entries.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dualform.store.key_source import KeySource
from dualform.store.segment import Segment, SegmentBuffer


class SegmentCache:
    """Content of segments held in memory, the least recently used dropped beyond a number of bytes."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = memory_bytes() // 2 if most_bytes is None else most_bytes
        self._held: OrderedDict[Path, SegmentBuffer] = OrderedDict()
        self._lock = Lock()

    def get(self, segment: Segment, make: Callable[[], SegmentBuffer]) -> SegmentBuffer:
        """The buffer of a segment, made where it is not held; one that could never be held is nobody else's."""
        with self._lock:
            held = self._held.get(segment.path)
            if held is None:
                held = make()
                if segment.size > self._most:
                    return held
                self._held[segment.path] = held
            self._held.move_to_end(segment.path)
            return held

    def settle(self) -> None:
        """Drop what is too much, after something was read."""
        with self._lock:
            size = sum(buffer.filled for buffer in self._held.values())
            while size > self._most:
                size -= self._held.popitem(last=False)[1].filled


def memory_bytes() -> int:
    """What the machine has, or what its container may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit, or "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


class Rows:
    """A matrix that lies in key sources, one after the other."""

    def __init__(self, sources: Sequence[KeySource], width: int) -> None:
        self.sources, self.width = sources, width
        self._starts = [source.first_row for source in sources]
        self.rows = sources[-1].first_row + sources[-1].rows if sources else 0

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width], aligned and C-contiguous; not to be written to.

        Raises Damaged, naming the file, where a segment is not what was committed.
        """
        parts = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            source = self.sources[index]
            end = min(stop, source.first_row + source.rows)
            parts.append(source.read(start - source.first_row, end - source.first_row))
            start, index = end, index + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.width), dtype=np.float32)

    def blocks(self, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Blocks of `size` rows (the last one smaller) with their first row, wherever sources end."""
        for start in range(0, self.rows, size):
            yield start, self.block(start, min(start + size, self.rows))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(rows), width] of any rows in any order."""
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.searchsorted(ordered, [*self._starts, self.rows])
        for source, (first, last) in zip(self.sources, pairwise(cuts), strict=True):
            if first < last:
                own = ordered[first:last] - source.first_row
                taken[order[first:last]] = source.holding(own)[own]
        return taken


class OrderedRows(Rows):
    """Rows that are stored in another order than that of the entries, as those of several shards are."""

    def __init__(self, sources: Sequence[KeySource], width: int, row_of_entry: NDArray[np.int64]) -> None:
        super().__init__(sources, width)
        self._row_of_entry = row_of_entry
        self.rows = len(row_of_entry)

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.take(np.arange(start, stop))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._stored.take(self._row_of_entry[rows])

    @cached_property
    def _stored(self) -> Rows:
        return Rows(self.sources, self.width)


class Keys(Rows):
    """A layer's keys: one row per entry, or one per distinct key where the layer's inputs repeat."""

    def __init__(
        self, sources: Sequence[KeySource], width: int, entries: int, row_of_entry: NDArray[np.int64] | None
    ) -> None:
        super().__init__(sources, width)
        self.entries = entries
        """H."""
        self.row_of_entry = row_of_entry
        """int64[H]: the row of each entry's key; None where row and entry are the same."""

    def of_entries(self, entries: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(entries), width]: the keys of any entries in any order."""
        return self.take(entries if self.row_of_entry is None else self.row_of_entry[entries])

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width]: the keys of a range of entries."""
        if self.row_of_entry is None:
            return self.block(start, stop)
        return self.take(self.row_of_entry[start:stop])
