"""A file of which each byte is written once, past the page cache where the file system allows it.

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

from dualform.store.durable_files import WrittenFile, remove

try:
    import fcntl
except ImportError:  # Windows: no file is written directly there
    fcntl = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20
_ALIGNED = 4096
_AT_ONCE = 32
"""Blocks a system call."""
_DIRECT = getattr(os, "O_DIRECT", 0) if fcntl else 0
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_NAMED_LATER: dict[int, bool] = {}
"""By device, whether its file system has files without a name and gives them one."""
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


class DirectFile:
    """A file that is written block by block, in any order, and has a name once it is on disk.

    Until then it has none where the system allows that, so that a process that is killed leaves nothing behind.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, for example where the disk is full; so does every method."""
        self._path = path
        self._file, self._named = _open(path)

    def write(self, blocks: Sequence[mmap.mmap], first: int, size: int) -> None:
        """Write `size` bytes of some blocks, of which the first is block `first` of the file. More bytes may be written
        behind them.
        """
        parts = [memoryview(block) for block in blocks]
        last = size - (len(parts) - 1) * BLOCK_BYTES
        parts[-1] = parts[-1][: -(-last // _ALIGNED) * _ALIGNED]
        self._file.seek(first * BLOCK_BYTES)
        _write(self._file, parts)

    def finish(self, size: int) -> None:
        """Cut it to its length; it is on disk on return, its name perhaps not yet."""
        try:
            self._file.truncate(size)
            self._file.sync()
            if not self._named:
                remove(self._path)
                self._file.link(self._path)
            self._file.close()
        finally:
            self._file.let_go()

    def close(self) -> None:
        """Let go of it where it is not finished: without a name it is gone."""
        self._file.let_go()


def _open(path: Path) -> tuple[WrittenFile, bool]:
    """A file to be written, directly if the file system can do so; and whether it has its name."""
    if _names_later(path.parent):
        try:
            return WrittenFile(path, os.O_WRONLY | _NAMELESS | _DIRECT, nameless=True), False
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system has no direct writes
                raise
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return WrittenFile(path, flags | _DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has no direct writes
            raise
        return WrittenFile(path, flags), True


def _names_later(folder: Path) -> bool:
    """Whether files in a folder can get their names last."""
    device = os.stat(folder).st_dev
    if device not in _NAMED_LATER:
        _NAMED_LATER[device] = bool(_NAMELESS) and _tried(folder)
    return _NAMED_LATER[device]


def _tried(folder: Path) -> bool:
    path, file = folder / f"{os.getpid()}.tmp", None
    try:
        file = WrittenFile(path, os.O_WRONLY | _NAMELESS, nameless=True)
        file.link(path)
        remove(path)
    except OSError:
        return False
    finally:
        if file is not None:
            file.let_go()
    return True


def _write(file: WrittenFile, parts: list[memoryview]) -> None:
    while parts:
        try:
            file.write(parts, _AT_ONCE)
        except OSError as error:
            if error.errno != errno.EINVAL or not _make_indirect(file.handle):
                raise


def _make_indirect(handle: int) -> bool:
    """Go through the page cache from here on; False where the file does already."""
    if fcntl is None:
        return False
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~_DIRECT)
    return True
