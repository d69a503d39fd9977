"""Putting files on disk so that they are still there after a power cut."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

OPENING = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags that every file is opened with for os.open, of those that the system has."""


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; nothing on Windows, where a folder cannot be opened."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by atomic rename: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_some(handle: int, pieces: Sequence[memoryview]) -> int:
    """Write the first bytes of some pieces, as many as the system takes at once; returns how many."""
    return os.writev(handle, pieces) if hasattr(os, "writev") else os.write(handle, pieces[0])


def checksum(content: bytes | bytearray | memoryview) -> str:
    """XXH3, 128 bits, in hexadecimal: the checksum of every file of a memory."""
    return xxhash.xxh3_128_hexdigest(content)


def digest_of(array: NDArray[Any]) -> str:
    """The checksum of an array's numbers, in the order of its axes."""
    return checksum(array.tobytes())


def block_checksum(content: bytes | bytearray | memoryview | mmap.mmap) -> bytes:
    """XXH3, 128 bits, as 16 bytes: the checksum of a segment's block and of a journal's frame."""
    return xxhash.xxh3_128_digest(content)


def checksum_pieces(pieces: Iterable[bytes | memoryview]) -> str:
    """The checksum of a content that comes in pieces."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def checksum_file(path: Path) -> str:
    """The checksum of a file's content, read in pieces of 16 MiB."""
    with open(path, "rb") as file:
        return checksum_pieces(iter(lambda: file.read(1 << 24), b""))
