"""The two kinds of matrix file in a memory, gathered row by row and written whole.

A key segment is a FAISS `IndexFlatIP` file, so that `faiss.read_index` alone opens it; a value segment is a `.npy`
file, so that `numpy.load` alone opens it. Both are a header that states the number of rows, then float32 rows. Writing
them here rather than through FAISS keeps them off the page cache, and a full disk raises (FAISS can report success
there).
"""

from __future__ import annotations

import io
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.store.direct_file import BLOCK_BYTES, Blocks, write_durably
from dualform.store.durable import block_checksum

Header: TypeAlias = Callable[[int, int], bytes]
"""(rows, width) -> the header's bytes, of a length that does not depend on the number of rows."""

_INNER_PRODUCT = 0


def flat_index_header(rows: int, width: int) -> bytes:
    """The 45 bytes before the vectors of a FAISS IndexFlatIP: kind, shape, training state, metric, size."""
    unused = 1 << 20
    return struct.pack("<4siqqq?iQ", b"IxFI", width, rows, unused, unused, True, _INNER_PRODUCT, rows * width)


def npy_header(rows: int, width: int) -> bytes:
    """The header of a float32[rows, width] .npy file; NumPy leaves room for the row count to grow."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    return stream.getvalue()


class MatrixWriter:
    """A matrix file gathered in memory until `finish`: its header, which comes first, is known last."""

    def __init__(self, path: Path, width: int, header: Header, blocks: Blocks) -> None:
        self.path, self.width, self.rows, self._header = path, width, 0, header
        self._temporary = path.with_name(path.name + ".tmp")
        self._pool = blocks
        self._blocks: list[mmap.mmap] = [blocks.take()]
        self._size = len(header(0, width))
        self._checksums: list[bytes] = []
        self._seen = self._size

    def append(self, rows: NDArray[np.float32]) -> None:
        """Add float32[n, width] rows."""
        content = np.ascontiguousarray(rows, dtype="<f4").reshape(-1).view(np.uint8)
        done = 0
        while done < len(content):
            place = self._size % BLOCK_BYTES
            if self._size // BLOCK_BYTES == len(self._blocks):
                # The block before is full, and still in the processor's cache. The first waits for the header.
                self._checksums.append(b"" if len(self._blocks) == 1 else block_checksum(self._blocks[-1]))
                self._blocks.append(self._pool.take())
            part = content[done : done + BLOCK_BYTES - place]
            np.frombuffer(self._blocks[-1], dtype=np.uint8)[place : place + len(part)] = part
            done, self._size = done + len(part), self._size + len(part)
        self.rows += len(rows)

    def unseen(self) -> list[memoryview]:
        """The bytes of the rows added since the last call; they are overwritten once the file is finished."""
        start, self._seen = self._seen, self._size
        parts = []
        for index in range(start // BLOCK_BYTES, -(-self._size // BLOCK_BYTES)):
            before = index * BLOCK_BYTES
            parts.append(memoryview(self._blocks[index])[max(start - before, 0) : self._size - before])
        return parts

    def finish(self) -> tuple[int, bytes]:
        """Make the file durable under its own name; returns its size and the checksums of its blocks, joined."""
        header = self._header(self.rows, self.width)
        self._blocks[0][: len(header)] = header
        last = self._size - (len(self._blocks) - 1) * BLOCK_BYTES
        self._checksums.append(block_checksum(memoryview(self._blocks[-1])[:last]))
        if len(self._blocks) > 1:
            self._checksums[0] = block_checksum(self._blocks[0])
        write_durably(self._temporary, self._blocks, self._size)
        os.replace(self._temporary, self.path)
        self._pool.give_back(self._blocks)
        self._blocks = []
        return self._size, b"".join(self._checksums)

    def discard(self) -> None:
        """Remove the file, finished or not: for one that no commit names."""
        self._temporary.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
