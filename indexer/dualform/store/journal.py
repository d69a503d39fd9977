"""The journal of a shard: what came since its last commit, frame after frame, each made durable with one fsync.

    journal-NNNNNN    the rows since commit N; made with the first frame, never cut short, removed after the next commit
    frame             header, 96 bytes; contents as JSON; the rows of tables as Arrow streams; the rows of matrices

Each frame's checksum covers that of the frame before, so that a frame vouches for all before it. A cut in the middle
of a write leaves the last frame torn, which is then no part of the memory. Anything wrong before the last frame was
altered: it is an error, never a shorter answer.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from dualform.errors import Damaged
from dualform.store.files.durable_files import (
    WrittenFile,
    block_checksum,
    damaged,
    open_regular,
    read_regular,
    remove,
    sync_folder,
    unreadable,
)
from dualform.store.tables import ColumnTypes, Increment, completed

_MAGIC = b"dualform"
_FIELDS = struct.Struct("<8s16sQQQ16s16s")
_HEADER_BYTES = _FIELDS.size + 16
_LENGTH = struct.Struct("<Q")
_FLOAT32 = "<f4"
"""The type of rows of which a frame does not say one."""


class FrameHeader(NamedTuple):
    """What a frame's header says, in the order of its bytes."""

    magic: bytes
    file_id: bytes
    """Drawn at random for each journal."""
    commit: int
    sequence: int
    size: int
    """Bytes of the payload."""
    before: bytes
    """Checksum of the frame before."""
    checksum: bytes
    """Of this frame's payload, over `before`."""


def journal_path(shard_folder: Path, commit: int) -> Path:
    """Where the rows since a commit stand."""
    return shard_folder / f"journal-{commit:06d}"


class JournalWriter:
    """Writes the frames since one commit."""

    def __init__(self, shard_folder: Path, commit: int) -> None:
        self.path = journal_path(shard_folder, commit)
        self._commit = commit
        self._id = os.urandom(16)
        self.begun = ""
        """The journal's id, in hexadecimal, once it has a frame."""
        self._file: WrittenFile | None = None
        self._sequence = 0
        self._before = bytes(16)

    def append(self, increment: Increment) -> None:
        """Add a frame; it is on disk on return. Raises OSError, for example where the disk is full."""
        payload = _payload(increment)
        digest = _chained(self._before, payload)
        size = sum(len(piece) for piece in payload)
        fields = FrameHeader(_MAGIC, self._id, self._commit, self._sequence, size, self._before, digest)
        header = _FIELDS.pack(*fields)
        first = self._file is None
        file = self._opened()
        file.write([memoryview(header + block_checksum(header)), *payload])
        file.sync()
        if first:
            sync_folder(self.path.parent)
        self._before, self._sequence = digest, self._sequence + 1
        self.begun = self._id.hex()

    def _opened(self) -> WrittenFile:
        if self._file is None:
            self._file = WrittenFile(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        return self._file

    def close(self) -> None:
        """Let go of the file, which stays: what was appended is on disk, or was told to have failed."""
        if self._file is not None:
            self._file.let_go()
            self._file = None

    def remove(self) -> None:
        """For a journal whose rows were committed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            remove(self.path)


def _chained(before: bytes, pieces: Sequence[memoryview]) -> bytes:
    """The checksum of a frame, over that of the frame before and its own payload."""
    digest = xxhash.xxh3_128(before)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _payload(increment: Increment) -> list[memoryview]:
    streams = [_arrow_stream(rows) for rows in increment.tables.values()]
    contents = {
        "tables": [[name, len(stream)] for name, stream in zip(increment.tables, streams, strict=True)],
        "matrices": [
            [m.layer, m.kind, m.first_row, m.rows, m.width, *([] if m.dtype == _FLOAT32 else [m.dtype])]
            for m in increment.matrices
        ],
    }
    text = json.dumps(contents, ensure_ascii=False).encode()
    rows = [piece for matrix in increment.matrices for piece in matrix.pieces]
    return [memoryview(_LENGTH.pack(len(text)) + text), *streams, *rows]


def _arrow_stream(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return memoryview(sink.getvalue())


Matrix = tuple[int, NDArray[Any]]
"""The number of the first row, and the rows as they are stored: [rows, width] of any type."""


@dataclass
class Frames:
    """What a journal holds beyond its commit."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    """New rows by table, each with all of the table's columns; a table without new rows is absent."""
    matrices: dict[tuple[str, str], list[Matrix]] = field(default_factory=dict)
    """By (layer, "keys" or "values"): the new rows in order, neighbours of one type together."""
    count: int = 0
    """Frames."""
    torn: bool = False
    """Whether a last frame was cut off while it was written."""
    checksum: str = ""
    """Of the last whole frame, which covers all before it."""
    file_id: bytes = b""
    """The journal's own; empty where it has no frame."""


class JournalMark(NamedTuple):
    """Which journal a shard has at a moment, and how far it is written."""

    file_id: bytes
    """Empty where there is none."""
    bytes: int


def journal_mark(shard_folder: Path, commit: int) -> JournalMark:
    path = journal_path(shard_folder, commit)
    try:
        with open_regular(path) as file:
            start = file.read(len(_MAGIC) + 16)
            return JournalMark(start[len(_MAGIC) :], os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        return JournalMark(b"", 0)
    except OSError as error:
        raise unreadable(path, error) from None


def check_begun(shard_folder: Path, commit: int, begun: str, frames: Frames) -> None:
    """Raises Damaged where a journal that was `begun` under this id is missing, has no frame, or is another's."""
    if not begun or frames.file_id.hex() == begun:
        return
    path = journal_path(shard_folder, commit)
    if frames.count:
        raise damaged(path, "is the journal of another recording")
    how = (
        "was cut short within its first frame" if path.exists() else f"is missing, with the steps since commit {commit}"
    )
    raise damaged(path, how)


def read_frames(shard_folder: Path, commit: int, tables: Mapping[str, ColumnTypes]) -> Frames | None:
    """What stands in the journal of a commit; None where there is no journal.

    A training that goes on removes the journal after its next commit, and starts another: whoever reads takes the
    manifest, the journal, and the manifest again, and starts over where it moved. `tables` are the manifest's.

    Raises Damaged, naming the file, where a frame before the last is not what was written.
    """
    path = journal_path(shard_folder, commit)
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    payloads, torn, checksum, file_id = _sound(path, content, commit)
    parts: dict[str, list[pa.Table]] = {}
    rows: dict[tuple[str, str], list[Matrix]] = {}
    try:
        for payload in payloads:
            _read_payload(payload, parts, rows)
        joined = {
            name: pa.concat_tables([completed(part, types) for part in parts[name]])
            for name, types in tables.items()
            if name in parts
        }
        matrices = {key: list(_stacked(each)) for key, each in rows.items()}
        return Frames(joined, matrices, len(payloads), torn, checksum, file_id)
    except (ValueError, LookupError, TypeError, RecursionError, struct.error, pa.ArrowException) as error:
        raise unreadable(path, error, "was altered") from None


def _sound(path: Path, content: bytes, commit: int) -> tuple[list[memoryview], bool, str, bytes]:
    """The payloads up to the first frame that is not whole, whether there is one, the checksum of all before it, and
    the journal's id.
    """
    payloads: list[memoryview] = []
    view, place, before, file_id = memoryview(content), 0, bytes(16), None
    while place < len(content):
        header, start = _header(view[place : place + _HEADER_BYTES]), place + _HEADER_BYTES
        if header is None:
            break
        payload = view[start : start + header.size]
        follows = (file_id or header.file_id, commit, len(payloads), before)
        if follows != (header.file_id, header.commit, header.sequence, header.before):
            raise _altered(path, len(payloads))
        if len(payload) < header.size or _chained(before, [payload]) != header.checksum:
            break
        payloads.append(payload)
        file_id, before, place = header.file_id, header.checksum, start + header.size
    # Whatever comes behind a frame was written after that frame was durable.
    if _later_header(content, place + 1):
        raise _altered(path, len(payloads))
    return payloads, place < len(content), before.hex(), file_id if payloads and file_id else b""


def _altered(path: Path, frame: int) -> Damaged:
    return damaged(path, f"was altered: frame {frame} is not what was written")


def _header(content: memoryview) -> FrameHeader | None:
    """What a frame's header says; None where it is none."""
    fields = content[: _FIELDS.size]
    if len(content) < _HEADER_BYTES or block_checksum(fields) != bytes(content[_FIELDS.size :]):
        return None
    header = FrameHeader(*_FIELDS.unpack(fields))
    return header if header.magic == _MAGIC else None


def _later_header(content: bytes, start: int) -> bool:
    """Whether a frame begins anywhere behind."""
    view = memoryview(content)
    while (place := content.find(_MAGIC, start)) >= 0:
        if _header(view[place : place + _HEADER_BYTES]):
            return True
        start = place + 1
    return False


def _read_payload(
    payload: memoryview, tables: dict[str, list[pa.Table]], matrices: dict[tuple[str, str], list[Matrix]]
) -> None:
    (length,) = _LENGTH.unpack(payload[: _LENGTH.size])
    place = _LENGTH.size + length
    contents = json.loads(bytes(payload[_LENGTH.size : place]))
    for name, size in contents["tables"]:
        tables.setdefault(name, []).append(pa.ipc.open_stream(payload[place : place + size]).read_all())
        place += size
    for layer, kind, first_row, rows, width, *said in contents["matrices"]:
        dtype = np.dtype(said[0] if said else _FLOAT32)
        size = rows * width * dtype.itemsize
        matrix = np.frombuffer(payload[place : place + size], dtype=dtype).reshape(rows, width)
        matrices.setdefault((layer, kind), []).append((first_row, matrix))
        place += size
    if place != len(payload):
        raise ValueError(f"a frame has {len(payload)} bytes instead of {place}.")


def _stacked(parts: Sequence[Matrix]) -> Iterator[Matrix]:
    """Raises ValueError where rows do not follow each other."""
    row = parts[0][0]
    for start, matrix in parts:
        if start != row:
            raise ValueError(f"rows jump from {row} to {start}.")
        row += len(matrix)
    for _, own in groupby(parts, lambda part: (part[1].dtype, part[1].shape[1])):
        alike = list(own)
        yield alike[0][0], np.concatenate([matrix for _, matrix in alike])
