"""Putting files on disk so that they are still there after a power cut, and checksums that tell whether they are.

Every act by which the store changes what is on disk is here, but for what DuckDB does with its own file. All of them
go through `attempt`, so that an error names its path, and that tests can have each one fail, end the process there, or
note what a power cut would leave.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from numpy.typing import NDArray

OPENING = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags that every file is opened with for os.open, of those that the system has."""
_AT_ANY_RATE = getattr(os, "O_NONBLOCK", 0)
_AT_ONCE = 512
"""Pieces a system call; Linux takes at most 1024."""
_Found = TypeVar("_Found")


def attempt(operation: str, path: Path, call: Callable[..., _Found], *arguments: Any, **named: Any) -> _Found:
    """What a system call returns; `operation` is its name, `path` what it is about.

    Raises OSError, which names the path also where the call was given an open file alone.
    """
    try:
        return call(*arguments, **named)
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


class WrittenFile:
    """A file that is open to be written. Every method raises OSError, for example where the disk is full."""

    def __init__(self, path: Path, flags: int, *, nameless: bool = False) -> None:
        """`nameless`: `flags` ask for a file without a name, in the folder where it is to have this one."""
        self.path = path
        place = path.parent if nameless else path
        self.handle: int = attempt("open", path, os.open, place, flags | OPENING, 0o666)

    def write(self, pieces: list[memoryview], at_once: int = _AT_ONCE) -> None:
        """Write pieces of bytes, so many a system call; those that are written leave the list."""
        pieces[:] = [piece.cast("B") for piece in pieces if piece.nbytes]
        while pieces:
            written = attempt("write", self.path, write_some, self.handle, pieces[:at_once])
            if not written:
                raise OSError(errno.EIO, "the file system did not write any bytes", os.fspath(self.path))
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][written:]

    def seek(self, place: int) -> None:
        os.lseek(self.handle, place, os.SEEK_SET)

    def truncate(self, size: int) -> None:
        attempt("truncate", self.path, os.ftruncate, self.handle, size)

    def sync(self) -> None:
        attempt("fsync", self.path, os.fsync, self.handle)

    def link(self, path: Path) -> None:
        """Give a file without a name this one."""
        # With any folder said, the link in /proc is followed; else it would be linked itself.
        attempt("link", path, os.link, f"/proc/self/fd/{self.handle}", path, src_dir_fd=self.handle)

    def close(self) -> None:
        """Let go of it, once or more often."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            attempt("close", self.path, os.close, handle)

    def let_go(self) -> None:
        """Close it where something failed before: what closing fails with would hide that."""
        with suppress(OSError):
            self.close()


def open_regular(path: Path) -> FileIO:
    """A file to read, unbuffered. Raises OSError, also if it is not a regular file: opening a pipe may wait forever."""
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | _AT_ANY_RATE))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_regular(path: Path) -> bytes:
    """The content of a file. Raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def write_some(handle: int, pieces: Sequence[memoryview]) -> int:
    """Write the first bytes of some pieces, as many as the system takes at once; returns how many."""
    return os.writev(handle, pieces) if hasattr(os, "writev") else os.write(handle, pieces[0])


def rename(old: Path, new: Path) -> None:
    """Give a file a name that another may have, which is gone then."""
    attempt("rename", new, os.replace, old, new)


def remove(path: Path) -> None:
    """Remove a file, where there is one."""
    with suppress(FileNotFoundError):
        attempt("unlink", path, os.unlink, path)


def remove_all(path: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        attempt("rmtree", path, shutil.rmtree, path)
    else:
        remove(path)


def make_folder(path: Path) -> None:
    """Make a folder that is not there yet; the one that it is to lie in is."""
    attempt("mkdir", path, os.mkdir, path)


def make_folders(path: Path) -> None:
    """Make a folder where there is none, with those that it is to lie in; the names of all of them are durable."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with suppress(FileExistsError):
        make_folder(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; nothing on Windows, where a folder cannot be opened."""
    if os.name == "nt":
        return
    file = WrittenFile(folder, os.O_RDONLY)
    try:
        file.sync()
    finally:
        file.let_go()


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by atomic rename: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    write_new(temporary, [memoryview(content)], durable=True)
    rename(temporary, path)
    sync_folder(path.parent)


def write_new(path: Path, pieces: list[memoryview], *, durable: bool) -> None:
    """Write a file, in place of one of that name; `durable`: its bytes are on disk on return."""
    file = WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        file.write(pieces)
        if durable:
            file.sync()
        file.close()
    finally:
        file.let_go()


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of a file to a new one; they are on disk on return."""
    with open_regular(source) as content:
        file = WrittenFile(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            while piece := content.read(1 << 24):
                file.write([memoryview(piece)])
            file.sync()
            file.close()
        finally:
            file.let_go()


def link_file(source: Path, target: Path) -> None:
    """Give a file that never changes another name, or what a symbolic link leads to; where the file system cannot,
    copy it.
    """
    try:
        attempt("link", target, os.link, source.resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:
        copy_file(source, target)


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
    with open_regular(path) as file:
        return checksum_pieces(iter(lambda: file.read(1 << 24), b""))
