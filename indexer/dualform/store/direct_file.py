"""A file that is written whole, once, past the page cache where the file system allows it.

Through the page cache every byte is copied and its page accounted for by a core that the training wants, and the fsync
at the end finds it all still to do. Direct writes take their bytes from where they lie. They ask for memory, offsets
and lengths that are multiples of a sector: blocks are whole pages, and the last one is cut to length after writing.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from dualform.store.durable import OPENING, write_some

try:
    import fcntl
except ImportError:  # Windows: no file is written directly there
    fcntl = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20
_ALIGNED = 4096
_AT_ONCE = 32
"""Blocks a system call."""
_DIRECT = getattr(os, "O_DIRECT", 0) if fcntl else 0
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Memory of this process alone, whose fresh pages cost less than those that it might share."""


class Blocks:
    """Blocks of memory for files to be gathered in, used again and again: fresh pages cost more than filling them."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self) -> mmap.mmap:
        """A block of BLOCK_BYTES, holding anything."""
        return self._free.pop() if self._free else mmap.mmap(-1, BLOCK_BYTES, **_PRIVATE)

    def give_back(self, blocks: Sequence[mmap.mmap]) -> None:
        self._free.extend(blocks)


def write_durably(path: Path, blocks: Sequence[mmap.mmap], size: int) -> None:
    """Make a file of the first `size` bytes of the blocks; it is on disk on return, its name perhaps not yet.

    Raises OSError, for example where the disk is full.
    """
    handle = _open(path)
    try:
        parts = [memoryview(block) for block in blocks]
        last = size - (len(parts) - 1) * BLOCK_BYTES
        parts[-1] = parts[-1][: -(-last // _ALIGNED) * _ALIGNED]
        for start in range(0, len(parts), _AT_ONCE):
            _write(handle, parts[start : start + _AT_ONCE])
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPENING
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has no direct writes
            raise
        return os.open(path, flags, 0o666)


def _write(handle: int, parts: list[memoryview]) -> None:
    while parts:
        try:
            written = write_some(handle, parts)
        except OSError as error:
            if error.errno != errno.EINVAL or not _make_indirect(handle):
                raise
            continue
        if not written:
            raise OSError(errno.EIO, "The file system took none of the bytes written")
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]


def _make_indirect(handle: int) -> bool:
    """Go through the page cache from here on; False where the file does already."""
    if fcntl is None:
        return False
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~_DIRECT)
    return True
