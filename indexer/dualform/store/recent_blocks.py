"""The blocks that passes over files have read last.

A pass that takes a narrow layer some thousand rows at a time asks for parts of one block many times over: each block is
read and verified once, and its rows are copied out of it.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.workers import cores
from dualform.store.matrix_file import MatrixForm
from dualform.store.segment import BLOCK_BYTES, Segment, first_byte, read_block

SMALL_BYTES = 4 * BLOCK_BYTES
"""Of rows that are copied out of blocks: of more, the blocks at both ends are few beside those between them."""


class RecentBlocks:
    """At most so many blocks, of whatever passes go on at once. Safe to use from several threads."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: as many as each core may need for one piece of a pass where it is None."""
        self._most = (SMALL_BYTES // BLOCK_BYTES + 1) * cores() if most is None else most
        self._held = OrderedDict[tuple[object, int], _Block]()
        self._taking = Lock()

    def rows(self, passing: object, segment: Segment, form: MatrixForm, start: int, stop: int) -> NDArray[Any]:
        """[stop - start, *shape], C-contiguous: a range of a segment's rows, for the pass that `passing` stands for.

        Raises Damaged, naming the file, where a block is not what was committed.
        """
        found = np.empty((stop - start, *form.shape), form.dtype)
        self._copy(passing, segment, form, start, found.reshape(-1).view(np.uint8))
        return found

    def some(self, passing: object, segment: Segment, form: MatrixForm, rows: NDArray[np.int64]) -> NDArray[Any]:
        """[len(rows), *shape]: as `rows`, of a few rows in any order."""
        found = np.empty((len(rows), *form.shape), form.dtype)
        parts = found.reshape(len(rows), -1).view(np.uint8)
        for place in np.argsort(rows, kind="stable").tolist():
            self._copy(passing, segment, form, int(rows[place]), parts[place])
        return found

    def clear(self) -> None:
        with self._taking:
            self._held.clear()

    def _copy(self, passing: object, segment: Segment, form: MatrixForm, row: int, left: NDArray[np.uint8]) -> None:
        """Into uint8[bytes], from where a row begins."""
        place = first_byte(segment, form) + form.row_bytes * row
        while len(left):
            number, within = divmod(place, BLOCK_BYTES)
            part = self._block(passing, segment, number)[within : within + len(left)]
            left[: len(part)] = part
            left, place = left[len(part) :], place + len(part)

    def _block(self, passing: object, segment: Segment, number: int) -> NDArray[np.uint8]:
        with self._taking:
            block = self._held.setdefault((passing, number), _Block())
            self._held.move_to_end((passing, number))
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        with block.reading:  # whoever else asks for it waits, instead of reading it, too
            if block.content is None:
                block.content = read_block(segment, number)
            return block.content


class _Block:
    def __init__(self) -> None:
        self.reading = Lock()
        self.content: NDArray[np.uint8] | None = None
