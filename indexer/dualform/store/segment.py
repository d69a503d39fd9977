"""One committed matrix file, read and verified block by block when its rows are first needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.errors import Damaged
from dualform.store.durable_files import checksum, open_regular
from dualform.store.matrix_file import MatrixForm
from dualform.store.missing_files import damaged, unreadable
from dualform.store.read_bytes import READ

BLOCK_BYTES = 1 << 20
"""Of a file that share a checksum."""
_DIGEST_BYTES = 16
_PAGE_BYTES = 2 << 20
"""Of a huge page, which NumPy asks for: a block that is read brings the pages that it touches."""


@dataclass(frozen=True)
class Segment:
    """What the table `segments` says of a file."""

    path: Path
    first_row: int
    rows: int
    size: int
    """Bytes."""
    checksums: bytes
    """XXH3 of 128 bits of each 1 MiB, one after the other."""

    @cached_property
    def identity(self) -> tuple[Path, str]:
        """Of its content: another training may have been recorded, or copied, into the same folder."""
        return self.path, checksum(self.checksums)

    def checksum(self, number: int) -> bytes:
        return self.checksums[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]


class SegmentBuffer:
    """Room for a file's content, of which blocks are read when they are asked for. Safe to use from several threads."""

    def __init__(self, segment: Segment, form: MatrixForm) -> None:
        self._segment, self._row_bytes = segment, form.row_bytes
        self._header, size = first_byte(segment, form), segment.size
        buffer = np.empty(size + 64, dtype=np.uint8)
        # The header's length is no multiple of four: place it so that the numbers behind it fall on a cache line.
        offset = -(buffer.ctypes.data + self._header) % 64
        self._content = buffer[offset : offset + size]
        rows = self._content[self._header :].view(form.dtype)
        self.matrix: NDArray[Any] = rows.reshape(segment.rows, *form.shape)
        """[rows, *shape]; only rows that were read hold anything."""
        self._read = np.zeros(-(-size // BLOCK_BYTES), dtype=bool)
        self._reading = Lock()
        self._touched = np.zeros(size // _PAGE_BYTES + 2, dtype=bool)
        """Pages of the content that something was read into, the first of them being that of its first byte."""
        self.filled = 0
        """Bytes of memory that what was read takes."""

    @property
    def whole(self) -> bool:
        """Whether all of the file was read."""
        return bool(self._read.all())

    def read(self, start: int, stop: int) -> bool:
        """Make a range of rows readable in `matrix`; returns whether the file was read.

        Raises Damaged, naming the file, where a block is not what was committed.
        """
        if start >= stop:
            return False
        first, last = (self._header + self._row_bytes * row for row in (start, stop))
        # The header is read along with the first row, so that it is verified, too.
        return self._need(np.arange(first // BLOCK_BYTES if start else 0, max(-(-last // BLOCK_BYTES), 1)))

    def read_rows(self, rows: NDArray[np.int64]) -> bool:
        """As `read`, for any rows in any order."""
        first = self._header + self._row_bytes * rows
        last = first + max(self._row_bytes, 1) - 1
        wanted = np.zeros(len(self._read), dtype=bool)
        for block in range(int((last // BLOCK_BYTES - first // BLOCK_BYTES).max(initial=0)) + 1):
            wanted[np.minimum(first // BLOCK_BYTES + block, last // BLOCK_BYTES)] = True
        return self._need(np.flatnonzero(wanted))

    def _need(self, blocks: NDArray[np.int64]) -> bool:
        if self._read[blocks].all():
            return False
        with self._reading:
            missing = blocks[~self._read[blocks]]
            with _opened(self._segment) as file:
                for block in missing.tolist():
                    self._fill(file, block)
        return len(missing) > 0

    def _fill(self, file: BinaryIO, block: int) -> None:
        """Read and verify one block."""
        part = self._content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].data
        _read_block(self._segment, file, block, part)
        self._read[block] = True
        first = self._content.ctypes.data % _PAGE_BYTES + block * BLOCK_BYTES
        self._touched[first // _PAGE_BYTES : (first + len(part) - 1) // _PAGE_BYTES + 1] = True
        self.filled = min(int(self._touched.sum()) * _PAGE_BYTES, len(self._content))


def first_byte(segment: Segment, form: MatrixForm) -> int:
    """Where the rows begin in a segment's file. Raises Damaged where it is not as long as its rows need."""
    header = len(form.header(segment.rows))
    if (size := header + segment.rows * form.row_bytes) != segment.size:
        raise damaged(segment.path, f"has {segment.size} bytes instead of {size}")
    return header


def read_rows(segment: Segment, form: MatrixForm, start: int, stop: int) -> NDArray[Any]:
    """[stop - start, *shape], aligned and C-contiguous, at least one row: in memory for their blocks alone, which the
    allocator has again for the next ones, where room for a whole file goes back to the system and comes as new pages.

    Raises Damaged as `SegmentBuffer.read`.
    """
    header = first_byte(segment, form)
    first, last = (header + form.row_bytes * row for row in (start, stop))
    blocks = range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES))
    begin, end = blocks.start * BLOCK_BYTES, min(blocks.stop * BLOCK_BYTES, segment.size)
    room = np.empty(end - begin + 64, np.uint8)
    content = room[-(room.ctypes.data + first - begin) % 64 :]
    with _opened(segment) as file:
        for number in blocks:
            place = number * BLOCK_BYTES - begin
            _read_block(segment, file, number, content[place : min(place + BLOCK_BYTES, end - begin)].data)
    return content[first - begin : last - begin].view(form.dtype).reshape(stop - start, *form.shape)


def read_block(segment: Segment, number: int) -> NDArray[np.uint8]:
    """uint8: one block of a file. Raises Damaged as `SegmentBuffer.read`."""
    content = np.empty(min(BLOCK_BYTES, segment.size - number * BLOCK_BYTES), np.uint8)
    with _opened(segment) as file:
        _read_block(segment, file, number, content.data)
    return content


@contextmanager
def _opened(segment: Segment) -> Iterator[BinaryIO]:
    """The file, if it has the length that was committed. What goes wrong with it inside is raised as Damaged."""
    try:
        with open_regular(segment.path) as file:
            if (size := os.fstat(file.fileno()).st_size) != segment.size:
                raise damaged(segment.path, f"has {size} bytes instead of {segment.size}")
            yield cast("BinaryIO", file)
    except OSError as error:
        if isinstance(error, Damaged):
            raise
        raise unreadable(segment.path, error) from None


def _read_block(segment: Segment, file: BinaryIO, block: int, part: memoryview) -> None:
    """Read and verify one block. Raises Damaged where it is not what was committed."""
    file.seek(block * BLOCK_BYTES)
    filled = 0
    while filled < len(part):
        got = file.readinto(part[filled:])  # type: ignore[attr-defined]
        if not got:
            raise damaged(segment.path, f"ends after {block * BLOCK_BYTES + filled} of {segment.size} bytes")
        filled += got
    READ.add(filled)
    if xxhash.xxh3_128_digest(part) != segment.checksum(block):
        raise damaged(segment.path, "was altered: its checksum does not match")
