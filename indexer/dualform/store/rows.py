"""The keys or values of one layer, by entry: the slots that the layer has are its entries, numbered in slot order.

Shapes: rows of float32[width]; H entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.arguments import RowAddresses
from dualform.store.sources.key_source import KeySource


class Rows:
    """A matrix that lies in key sources, one after the other."""

    def __init__(self, sources: Sequence[KeySource], width: int) -> None:
        self.sources, self.width = sources, width
        self._starts = [source.first_row for source in sources]
        self.rows = self.stored_rows = sources[-1].first_row + sources[-1].rows if sources else 0
        """`rows` are what the methods take. `stored_rows` are all rows of the sources: of a training that was resumed,
        also those after its checkpoint, which are no entry's."""

    @property
    def order(self) -> NDArray[np.int64] | None:
        """int64[H]: the stored row of each entry; None where row and entry are the same."""
        return None

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
                matrix, places = source.holding(ordered[first:last] - source.first_row)
                taken[order[first:last]] = matrix[places]
        return taken

    def passing(self, *, first: bool = False) -> Self:
        """The same rows, to be gone through once: what is read of them is not kept for the next question. With `first`,
        it is from the second time on.
        """
        found = copy(self)
        found.sources = [source.passing(first=first) for source in self.sources]
        return found

    def addresses(self, rows: NDArray[np.int64]) -> RowAddresses:
        """Where some rows, in any order, lie in memory."""
        number = np.searchsorted(self._starts, rows, side="right") - 1

        def parts() -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.int64]]]:
            for index in np.flatnonzero(np.bincount(number)).tolist():
                source, own = self.sources[index], number == index
                yield own, *source.holding(rows[own] - source.first_row)

        return RowAddresses(len(rows), self.width, parts())


class OrderedRows(Rows):
    """Rows that are stored in another order than that of the entries, as those of several shards are."""

    def __init__(self, sources: Sequence[KeySource], width: int, row_of_entry: NDArray[np.int64]) -> None:
        super().__init__(sources, width)
        self._row_of_entry = row_of_entry
        self.rows = len(row_of_entry)

    @property
    def order(self) -> NDArray[np.int64]:
        return self._row_of_entry

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.take(np.arange(start, stop))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._stored.take(self._row_of_entry[rows])

    def addresses(self, rows: NDArray[np.int64]) -> RowAddresses:
        return self._stored.addresses(self._row_of_entry[rows])

    @property
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

    @property
    def order(self) -> NDArray[np.int64] | None:
        return self.row_of_entry

    def of_entries(self, entries: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(entries), width]: the keys of any entries in any order."""
        return self.take(entries if self.row_of_entry is None else self.row_of_entry[entries])

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width]: the keys of a range of entries."""
        if self.row_of_entry is None:
            return self.block(start, stop)
        return self.take(self.row_of_entry[start:stop])
