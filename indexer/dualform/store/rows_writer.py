"""Writes one layer's keys, or its values, or rows of no layer: a matrix file for each commit and each form of rows.

A file is gathered row by row and written in blocks, the first one last: it has the header, which says how many rows
there are. Writing it here rather than through FAISS keeps it off the page cache, and a full disk raises, where FAISS
can report success.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.store.direct_file import BLOCK_BYTES, Blocks, DirectFile
from dualform.store.durable_files import block_checksum, remove, rename
from dualform.store.increment import RowBytes
from dualform.store.matrix_file import MatrixForm


class RowFormat(Protocol):
    """How rows of a layer are stored."""

    @property
    def forms(self) -> Sequence[MatrixForm]:
        """The last one holds any rows, those before it some."""
        ...

    def encoded(self, rows: NDArray[Any], form: MatrixForm, /) -> NDArray[Any] | None:
        """Rows as those of a form; None where it cannot hold them without loss."""
        ...


class RowsWriter:
    """Gathers rows until a commit."""

    def __init__(self, owner: str, kind: str, shard_folder: Path, place: str, blocks: Blocks) -> None:
        """`owner`: the layer; `kind`: "keys", "values", or what rows of no layer are; `place`: folder in the shard."""
        self._owner, self._kind, self._blocks = owner, kind, blocks
        self._shard_folder, self._place = shard_folder, place
        self._segment = 0
        self._before = 0
        """Rows of the commits so far."""
        self._open: list[MatrixWriter] = []
        """One for each form that rows came in since the last commit."""
        self._form = 0
        """Which of a format's forms takes rows until the next commit."""
        self._seen = 0

    def append_encoded(self, rows: NDArray[Any], rows_format: RowFormat) -> int:
        """As `append`, in the first form that holds them: once one does not, the next one takes what comes before the
        commit.
        """
        forms = rows_format.forms
        while (encoded := rows_format.encoded(rows, forms[self._form])) is None:
            self._form += 1
        return self.append(encoded, forms[self._form])

    def append(self, rows: NDArray[Any], form: MatrixForm) -> int:
        """Add rows [n, *shape] of a form; returns their bytes. A form that gave way comes back after a commit only."""
        if not len(rows):
            return 0
        if not self._open or self._open[-1].form != form:
            path = self._shard_folder / self._place / f"{self._kind}-{self._segment:06d}.{form.suffix}"
            self._open.append(MatrixWriter(path, form, self._blocks))
        self._open[-1].append(rows)
        return rows.nbytes

    def unseen(self) -> list[RowBytes]:
        """The rows gathered since the last call; they are overwritten once they were written."""
        found, first = [], self._before
        for writer in self._open:
            new, last = max(first, self._seen), first + writer.rows
            if last > new:
                form = writer.form
                pieces = writer.unseen()
                found.append(RowBytes(self._owner, self._kind, new, last - new, form.width, pieces, form.dtype.str))
            first = last
        self._seen = first
        return found

    def write(self) -> None:
        """Write what fills whole blocks, whose memory others may have then: it is not to be asked for as `unseen` any
        more before `begin`. A reader does not find it before the commit.
        """
        for writer in self._open:
            writer.write()

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make what was gathered durable; returns its rows for the table `segments`. `begin` is to follow."""
        rows, first = [], self._before
        for writer in self._open:
            size, checksums = writer.finish()
            file = f"{self._place}/{writer.path.name}"
            rows.append((segment, self._owner, self._kind, file, first, writer.rows, size, checksums))
            first += writer.rows
        return rows

    def begin(self, segment: int) -> None:
        """What was gathered is durable: gather for another segment."""
        self._before += sum(writer.rows for writer in self._open)
        self._open, self._form, self._seen, self._segment = [], 0, self._before, segment

    def discard(self) -> None:
        """Remove what was gathered, with those of its files that were finished before another one failed."""
        for writer in self._open:
            writer.discard()
        self._open = []


class MatrixWriter:
    """A matrix file gathered in memory and written in blocks until `finish`: its header, which comes first, is known
    last.
    """

    def __init__(self, path: Path, form: MatrixForm, blocks: Blocks) -> None:
        self.path, self.form, self.rows = path, form, 0
        self._temporary = path.with_name(path.name + ".tmp")
        self._pool = blocks
        self._blocks: list[mmap.mmap] = [blocks.take()]
        """The first of the file, then those that are not written yet."""
        self._written = 0
        """Blocks behind the first one that are on their way to the disk."""
        self._file: DirectFile | None = None
        self._size = len(form.header(0))
        self._checksums: list[bytes] = []
        self._seen = self._size

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows [n, *shape] of the form's type."""
        content = np.ascontiguousarray(rows, dtype=self.form.dtype).reshape(-1).view(np.uint8)
        done = 0
        while done < len(content):
            place = self._size % BLOCK_BYTES
            if self._size // BLOCK_BYTES == len(self._blocks) + self._written:
                # The block before is full, and still in the processor's cache. The first waits for the header.
                self._checksums.append(block_checksum(self._blocks[-1]) if self._checksums else b"")
                self._blocks.append(self._pool.take())
            part = content[done : done + BLOCK_BYTES - place]
            np.frombuffer(self._blocks[-1], dtype=np.uint8)[place : place + len(part)] = part
            done, self._size = done + len(part), self._size + len(part)
        self.rows += len(rows)

    def unseen(self) -> list[memoryview]:
        """The bytes of the rows added since the last call; they are overwritten once they were written."""
        start, self._seen = self._seen, self._size
        parts = []
        for index in range(start // BLOCK_BYTES, -(-self._size // BLOCK_BYTES)):
            assert not 0 < index <= self._written, "rows are asked for whose memory others have"
            before, own = index * BLOCK_BYTES, self._blocks[max(index - self._written, 0)]
            parts.append(memoryview(own)[max(start - before, 0) : self._size - before])
        return parts

    def write(self) -> None:
        """Write the blocks that are full, but for the first one, and give their memory back."""
        full = self._blocks[1:-1]
        if not full:
            return
        self._opened().write(full, 1 + self._written, len(full) * BLOCK_BYTES)
        self._written += len(full)
        self._blocks[1:-1] = []
        self._pool.give_back(full)

    def _opened(self) -> DirectFile:
        if self._file is None:
            self._file = DirectFile(self._temporary)
        return self._file

    def finish(self) -> tuple[int, bytes]:
        """Make the file durable under its own name; returns its size and the checksums of its blocks, joined."""
        header, blocks = self.form.header(self.rows), self._blocks
        blocks[0][: len(header)] = header
        last = self._size - (len(blocks) + self._written - 1) * BLOCK_BYTES
        self._checksums.append(block_checksum(memoryview(blocks[-1])[:last]))
        if len(blocks) > 1:
            self._checksums[0] = block_checksum(blocks[0])
        self._write_rest(self._opened(), last)
        rename(self._temporary, self.path)
        self._pool.give_back(blocks)
        self._blocks = []
        return self._size, b"".join(self._checksums)

    def _write_rest(self, file: DirectFile, last: int) -> None:
        """What is not written yet, of which the last block has so many bytes."""
        blocks = self._blocks
        if not self._written:
            file.write(blocks, 0, self._size)
        else:
            file.write(blocks[:1], 0, BLOCK_BYTES)
            file.write(blocks[1:], 1 + self._written, (len(blocks) - 2) * BLOCK_BYTES + last)
        file.finish(self._size)

    def discard(self) -> None:
        """Remove the file, finished or not: for one that no commit names."""
        if self._file is not None:
            self._file.close()
        remove(self._temporary)
        remove(self.path)
