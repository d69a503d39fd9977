"""Matrix files, read block by block, verified, and cached.

The blocks that passes over files have read last.

A pass that takes a narrow layer some thousand rows at a time asks for parts of one block many times over: each block is
read and verified once, and its rows are copied out of it.

The two kinds of matrix file in a memory.

Float32 keys are a FAISS `IndexFlatIP` file, so that `faiss.read_index` alone opens it; everything else is a `.npy`
file, so that `numpy.load` alone opens it. Both are a header that states the number of rows, then the rows.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
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
from dualform.kernels.workers import cores
from dualform.store.files.durable_files import READ, checksum, damaged, open_regular, unreadable
from dualform.store.files.ram_budget import RamBudget, memory_bytes

_INNER_PRODUCT = 0


@dataclass(frozen=True)
class MatrixForm:
    """What a matrix file is, whatever the number of its rows: float32 vectors for FAISS, or arrays for NumPy."""

    suffix: str
    """Of the file's name: "faiss", "npy", or what tells this form from others of its source and ends in ".npy"."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""

    @cached_property
    def width(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    @cached_property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def header(self, rows: int) -> bytes:
        """The bytes before the rows, of a length that does not depend on the number of rows."""
        return _flat_index_header(rows, self.width) if self.suffix == "faiss" else _npy_header(rows, self)


def flat_index(width: int) -> MatrixForm:
    """A FAISS IndexFlatIP of float32[rows, width]."""
    return MatrixForm("faiss", np.dtype("<f4"), (width,))


def npy(dtype: str, *shape: int) -> MatrixForm:
    """A NumPy file of [rows, *shape]."""
    return MatrixForm("npy", np.dtype(dtype), shape)


def _flat_index_header(rows: int, width: int) -> bytes:
    """The 45 bytes before the vectors of a FAISS IndexFlatIP: kind, shape, training state, metric, size."""
    unused = 1 << 20
    return struct.pack("<4siqqq?iQ", b"IxFI", width, rows, unused, unused, True, _INNER_PRODUCT, rows * width)


def _npy_header(rows: int, form: MatrixForm) -> bytes:
    """NumPy leaves room for the row count to grow."""
    stream = io.BytesIO()
    contents = {"descr": form.dtype.str, "fortran_order": False, "shape": (rows, *form.shape)}
    np.lib.format.write_array_header_1_0(stream, contents)
    return stream.getvalue()


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


class SegmentCache:
    """Content of segments held in memory, the least recently used dropped beyond a budget."""

    def __init__(self, most_bytes: int | None = None, budget: RamBudget | None = None) -> None:
        """`most_bytes`: half of the machine's memory where it is None, and no budget is shared with others."""
        self._budget = budget or RamBudget(memory_bytes() // 2 if most_bytes is None else most_bytes)
        self.shares = budget is not None
        """Whether others count on what is read being counted: then nothing is read past the cache."""
        self.recent = RecentBlocks()
        """Of what is gone through once, and not held."""
        self._owner = object()
        self._passed = set[Hashable]()
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._budget.bytes_of(self._owner)

    def get(self, segment: Segment, make: Callable[[], SegmentBuffer]) -> SegmentBuffer:
        """The buffer of a segment, made where it is not held; one that could never be held is nobody else's."""
        with self._lock:
            held: SegmentBuffer | None = self._budget.find(self._owner, segment.identity)
            if held is None:
                held = make()
                if segment.size <= self._budget.largest:
                    self._budget.keep(self._owner, segment.identity, held, 0)
            return held

    def find(self, segment: Segment) -> SegmentBuffer | None:
        """The buffer of a segment if it is held."""
        found: SegmentBuffer | None = self._budget.find(self._owner, segment.identity)
        return found

    def passed(self, segment: Segment) -> bool:
        """Whether this was asked of the segment before."""
        with self._lock:
            before = segment.identity in self._passed
            self._passed.add(segment.identity)
        return before

    def settle(self, segment: Segment, buffer: SegmentBuffer) -> None:
        """Drop what is too much, after something was read into the buffer of a segment."""
        with self._lock:
            if self._budget.find(self._owner, segment.identity) is buffer:
                self._budget.keep(self._owner, segment.identity, buffer, buffer.filled)

    def clear(self) -> None:
        """Let go of everything; whoever is reading keeps what it has."""
        self._budget.forget(self._owner)
        self.recent.clear()
