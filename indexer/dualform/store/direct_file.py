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

from dualform.store.durable_files import OPENING, write_some

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
        self._handle, self._named = _open(path)

    def write(self, blocks: Sequence[mmap.mmap], first: int, size: int) -> None:
        """Write `size` bytes of some blocks, of which the first is block `first` of the file. More bytes may be written
        behind them.
        """
        parts = [memoryview(block) for block in blocks]
        last = size - (len(parts) - 1) * BLOCK_BYTES
        parts[-1] = parts[-1][: -(-last // _ALIGNED) * _ALIGNED]
        os.lseek(self._handle, first * BLOCK_BYTES, os.SEEK_SET)
        for start in range(0, len(parts), _AT_ONCE):
            _write(self._handle, parts[start : start + _AT_ONCE])

    def finish(self, size: int) -> None:
        """Cut it to its length; it is on disk on return, its name perhaps not yet."""
        try:
            os.ftruncate(self._handle, size)
            os.fsync(self._handle)
            if not self._named:
                self._path.unlink(missing_ok=True)
                _name(self._handle, self._path)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of it: without a name it is gone."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _open(path: Path) -> tuple[int, bool]:
    """A file to be written, directly if the file system can do so; and whether it has its name."""
    if _names_later(path.parent):
        try:
            return os.open(path.parent, os.O_WRONLY | _NAMELESS | _DIRECT | OPENING, 0o666), False
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system has no direct writes
                raise
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPENING
    try:
        return os.open(path, flags | _DIRECT, 0o666), True
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has no direct writes
            raise
        return os.open(path, flags, 0o666), True


def _names_later(folder: Path) -> bool:
    """Whether files in a folder can get their names last."""
    device = os.stat(folder).st_dev
    if device not in _NAMED_LATER:
        _NAMED_LATER[device] = bool(_NAMELESS) and _tried(folder)
    return _NAMED_LATER[device]


def _tried(folder: Path) -> bool:
    path, handle = folder / f"{os.getpid()}.tmp", -1
    try:
        handle = os.open(folder, os.O_WRONLY | _NAMELESS | OPENING, 0o666)
        _name(handle, path)
        path.unlink()
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def _name(handle: int, path: Path) -> None:
    # With any folder said, the link in /proc is followed; else it would be linked itself.
    os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle)


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
