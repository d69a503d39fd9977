"""Writes the matrix files of layers, each distinct key once, and of parameters that no slot explains.

Writes what no slot explains of a training, moment by moment (rows.py): a file for each commit that has rows.

Writes one layer's keys and values: with each commit, a file for each form of their rows.

Shapes: n slots of an extent.

Writes one layer's keys, or its values, or rows of no layer: a matrix file for each commit and each form of rows.

A file is gathered row by row and written in blocks, the first one last: it has the header, which says how many rows
there are. Writing it here rather than through FAISS keeps it off the page cache, and a full disk raises, where FAISS
can report success.

Which keys of a layer were stored before: inputs that repeat, epoch after epoch, are stored once.

Shapes: m rows of a batch.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import LayerRows
from dualform.store.files.durable_files import (
    BLOCK_BYTES,
    Blocks,
    DirectFile,
    block_checksum,
    make_folder,
    remove,
    rename,
    sync_folder,
)
from dualform.store.files.segment import MatrixForm
from dualform.store.layer import Layer
from dualform.store.rows import FOLDER, KIND, OtherRow, Others
from dualform.store.tables import RowBytes

_MOST_REMEMBERED = 4_000_000
"""Distinct keys remembered in search of repeats (about 0.1 GB): inputs that never repeat must not fill memory."""
_RECENT = 1 << 17
"""Of which about so many lie in a dictionary, which is quicker, before they are sorted in among the others."""


class DistinctKeys:
    """Knows the distinct keys of one layer by their digests."""

    def __init__(self) -> None:
        self._recent: dict[bytes, int] = {}
        """Digest -> row."""
        self._firsts, self._seconds = np.empty((2, 0), dtype=np.uint64)
        """[R] each: the digests of earlier keys as two numbers, by the first one, ascending: a fifth of what a
        dictionary takes."""
        self._row_of_digest = np.empty(0, dtype=np.int64)
        """[R]"""
        self._rows = 0

    def rows_of(self, keys: NDArray[Any]) -> tuple[NDArray[np.int64], list[int]]:
        """Which of the layer's stored rows each of the keys [m, …] is, bit for bit, int64[m]; and the places among
        them of those that were not seen before, which are rows of their own from now on.
        """
        digests = [xxhash.xxh3_128_digest(content) for content in _contents(keys)]
        of_row, new = self._known(digests), list[int]()
        if -1 in of_row:
            known = self._recent
            for place, digest in enumerate(digests):
                if of_row[place] < 0:
                    row = of_row[place] = known.get(digest, self._rows)
                    if row == self._rows:
                        self._rows += 1
                        new.append(place)
                        if len(known) + len(self._firsts) < _MOST_REMEMBERED:
                            known[digest] = row
            if len(known) >= _RECENT:
                self._sort_in()
        return np.array(of_row, dtype=np.int64), new

    def _known(self, digests: list[bytes]) -> list[int]:
        """The row of each digest; -1 where none is known."""
        known = self._recent
        found = [known.get(digest, -1) for digest in digests]
        if -1 not in found or not len(self._firsts):
            return found
        firsts, seconds = _numbers(digests)
        last = len(self._firsts) - 1
        place = np.searchsorted(self._firsts, firsts)
        at = np.minimum(place, last)
        same = self._firsts[at] == firsts
        # Digests that share their first number follow one another.
        while (behind := same & (self._seconds[at] != seconds)).any():
            place = place + behind
            at = np.minimum(place, last)
            same &= ~behind | ((place <= last) & (self._firsts[at] == firsts))
        earlier = np.where(same, self._row_of_digest[at], -1).tolist()
        return [before if own < 0 else own for own, before in zip(found, earlier, strict=True)]

    def _sort_in(self) -> None:
        """Make the recent ones earlier ones."""
        firsts, seconds = _numbers(list(self._recent))
        rows = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        firsts = np.concatenate([self._firsts, firsts])
        order = np.argsort(firsts, kind="stable")
        self._firsts = firsts[order]
        self._seconds = np.concatenate([self._seconds, seconds])[order]
        self._row_of_digest = np.concatenate([self._row_of_digest, rows])[order]
        self._recent = {}


def _numbers(digests: list[bytes]) -> NDArray[np.uint64]:
    """[2, m]"""
    return np.ascontiguousarray(np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2).T)


def _contents(keys: NDArray[Any]) -> list[memoryview]:
    """Each as it lies, without a copy."""
    if not keys.size:  # of which there is no such view
        return [memoryview(b"")] * len(keys)
    content = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
    size = len(content) // len(keys)
    return [content[start : start + size] for start in range(0, len(content), size)]


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


class LayerWriter:
    """Gathers one layer's rows and writes them at a commit; of a layer whose inputs repeat, each distinct key once."""

    def __init__(self, layer: Layer, shard_folder: Path, blocks: Blocks) -> None:
        """Raises BadInput for a layer whose keys its source cannot store."""
        self.layer = layer
        place = f"layers/{layer.folder}"
        self.folder = shard_folder / place
        self._format = layer.key_format
        self._keys = RowsWriter(layer.name, "keys", shard_folder, place, blocks)
        self._values = RowsWriter(layer.name, "values", shard_folder, place, blocks)
        self._distinct = DistinctKeys() if layer.repeats and layer.keys else None
        self._key_rows: list[NDArray[np.int64]] = []
        """Of a layer whose inputs repeat, the key row of each entry since they were last taken."""
        self._entries = 0
        self._ranges: list[list[int]] = []
        self._first_entry = 0

    def append(self, rows: LayerRows, first_slot: int, slots: int) -> int:
        """Add the rows of an extent of `slots` slots; returns the bytes gathered.

        Raises BadInput where there are not as many rows as slots, or where they cannot be stored without loss.
        """
        keys = self._format.count(rows.keys)
        if keys is not None:
            self._check_count("keys", keys, rows.call, slots)
        if rows.values is not None:
            self._check_count("values", len(rows.values), rows.call, slots)
        elif self.layer.values and self.layer.keys:
            raise BadInput(f"layer {self.layer.name!r} has keys without values.", field="layers")
        if not slots:
            return 0
        written = self._gather(rows) if self.layer.keys else 0
        self._entries += slots
        if self._ranges and sum(self._ranges[-1]) == first_slot:
            self._ranges[-1][1] += slots
        else:
            self._ranges.append([first_slot, slots])
        return written

    def _check_count(self, kind: str, rows: int, call: int, slots: int) -> None:
        if rows != slots:
            raise BadInput(
                f"layer {self.layer.name!r} has {rows} {kind} for the {slots} slots of call {call} in "
                f"space {self.layer.space!r}.",
                hint=f"Give it its own space: Recorder(spaces={{{self.layer.name!r}: …}}).",
                field="layers",
            )

    def _gather(self, rows: LayerRows) -> int:
        keys = self._accepted(rows.keys)
        if self._distinct:
            rows_of_keys, new = self._distinct.rows_of(keys)
            self._key_rows.append(_entry_rows(rows_of_keys, self._format.per_row))
            keys = keys if len(new) == len(keys) else keys[new]
        written = self._keys.append_encoded(keys, self._format)
        if self.layer.values and rows.values is not None:
            written += self._values.append_encoded(rows.values, self.layer.value_format)
        return written

    def _accepted(self, keys: NDArray[Any]) -> NDArray[Any]:
        try:
            return self._format.accepted(keys)
        except ValueError as error:
            raise BadInput(f"layer {self.layer.name!r}: {error}", field="layers") from None

    def unseen(self) -> list[RowBytes]:
        """The rows gathered since the last call; they are overwritten once they were written."""
        return [*self._keys.unseen(), *self._values.unseen()]

    def write(self) -> None:
        """As RowsWriter."""
        self._keys.write()
        self._values.write()

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open segment durable; returns its rows for the table `segments`."""
        rows = [*self._keys.finish(segment), *self._values.finish(segment)]
        if rows:
            sync_folder(self.folder)
        for writer in (self._keys, self._values):
            writer.begin(segment + 1)
        return rows

    def discard(self) -> None:
        """Remove the open segment, with those of its files that were finished before another one failed."""
        self._keys.discard()
        self._values.discard()

    def take_entries(self) -> list[tuple[str, int, int]]:
        """The rows for the table `entries` since the last call."""
        ranges, self._ranges = self._ranges, []
        return [(self.layer.name, first, slots) for first, slots in ranges]

    def take_key_rows(self) -> list[tuple[str, int, NDArray[np.int64]]]:
        """The row for the table `key_rows` since the last call: one, or none."""
        if not self._key_rows:
            return []
        rows, self._key_rows = np.concatenate(self._key_rows), []
        first, self._first_entry = self._first_entry, self._entries
        return [(self.layer.name, first, rows)]


def _entry_rows(rows: NDArray[np.int64], per_row: int) -> NDArray[np.int64]:
    """int64[n]: the key row of each entry, of which a stored row stands for `per_row`."""
    return (rows[:, None] * per_row + np.arange(per_row)).reshape(-1)


class OthersWriter:
    """Gathers rows until a commit. Without `others` there are none."""

    def __init__(self, others: Others | None, shard_folder: Path, blocks: Blocks) -> None:
        self._others, self._folder = others, shard_folder / FOLDER
        self._moments: list[tuple[int]] = []
        if others is not None:
            make_folder(self._folder)
        self._rows = RowsWriter("", KIND, shard_folder, FOLDER, blocks)

    def append(self, rows: Sequence[OtherRow]) -> int:
        """Returns the bytes gathered."""
        if self._others is None:
            return 0
        self._moments += [(row.at_step,) for row in rows]
        return sum(self._rows.append(row.content[None], self._others.form) for row in rows)

    def take_moments(self) -> list[tuple[int]]:
        """The rows for the table `other_rows` since the last call."""
        taken, self._moments = self._moments, []
        return taken

    def unseen(self) -> list[RowBytes]:
        """As RowsWriter."""
        return self._rows.unseen()

    def write(self) -> None:
        """As RowsWriter."""
        self._rows.write()

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open file durable; returns its rows for the table `other_segments`."""
        rows = [(number, *rest) for number, _, _, *rest in self._rows.finish(segment)]
        if rows:
            sync_folder(self._folder)
        self._rows.begin(segment + 1)
        return rows

    def discard(self) -> None:
        """Remove the open file, finished or not."""
        self._rows.discard()
