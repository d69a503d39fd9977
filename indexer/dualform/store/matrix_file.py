"""The two kinds of matrix file in a memory, gathered row by row and written whole.

Float32 keys are a FAISS `IndexFlatIP` file, so that `faiss.read_index` alone opens it; everything else is a `.npy`
file, so that `numpy.load` alone opens it. Both are a header that states the number of rows, then the rows. Writing
them here rather than through FAISS keeps them off the page cache, and a full disk raises (FAISS can report success
there).
"""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.direct_file import BLOCK_BYTES, Blocks, write_durably
from dualform.store.durable import block_checksum

_INNER_PRODUCT = 0


@dataclass(frozen=True)
class MatrixForm:
    """What a matrix file is, whatever the number of its rows: float32 vectors for FAISS, or arrays for NumPy."""

    suffix: str
    """Of the file's name: "faiss" or "npy"."""
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


class MatrixWriter:
    """A matrix file gathered in memory until `finish`: its header, which comes first, is known last."""

    def __init__(self, path: Path, form: MatrixForm, blocks: Blocks) -> None:
        self.path, self.form, self.rows = path, form, 0
        self._temporary = path.with_name(path.name + ".tmp")
        self._pool = blocks
        self._blocks: list[mmap.mmap] = [blocks.take()]
        self._size = len(form.header(0))
        self._checksums: list[bytes] = []
        self._seen = self._size

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows [n, *shape] of the form's type."""
        content = np.ascontiguousarray(rows, dtype=self.form.dtype).reshape(-1).view(np.uint8)
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
        header = self.form.header(self.rows)
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
