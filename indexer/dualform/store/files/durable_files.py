"""Files on disk: written durably and checked, past the page cache where that helps, and derived files.

A file of what is derived from committed files: it saves a cold start the work, and is never needed.

    prefix    "dualform", the length of the JSON text (8 bytes, little-endian), XXH3-128 of that text
    text      {"derived": kind and version, "of": digest, "sizes": [bytes…], "checksums": [XXH3-128 of each part…]}
    parts     each from a multiple of 64 on

`of` says what it was derived from, so that a file of anything else is as good as none. It is written whole under
another name and renamed, without an fsync: what a power cut leaves of it does not pass its checksums, and what does not
is made again. Nobody is told where it cannot be written. What a killed process left unfinished goes when the next file
of its folder is written.

A file of which each byte is written once, past the page cache where the file system allows it.

Through the page cache every byte is copied and its page accounted for by a core that the training wants, and the fsync
at the end finds it all still to do. Direct writes take their bytes from where they lie. They ask for memory, offsets
and lengths that are multiples of a sector: blocks are whole pages, and the last one is cut to length after writing.

What is said of a file that is damaged, or that an open memory misses because samples were deleted since.

Files know of no manifest, so memory.json is read as it is.

Putting files on disk so that they are still there after a power cut, and checksums that tell whether they are.

Every act by which the store changes what is on disk is here, but for what DuckDB does with its own file. All of them
go through `attempt`, so that an error names its path, and that tests can have each one fail, end the process there, or
note what a power cut would leave.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate, pairwise
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.errors import Damaged, DualformError
from dualform.faults import shortage

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


_IRREPLACEABLE = ("memory.json", "shard.json", "slots.duckdb", "initial.safetensors")
"""Without one of these files nothing can be repaired."""


def damaged(file: Path, what: str) -> Damaged:
    """The error for a file of a memory: `what` is wrong with it, then what may help."""
    folder = next((own for own in file.parents if (own / "memory.json").is_file()), file.parent)
    if folder.name.startswith("run-") and (folder.parent / "memory.json").is_file():  # a further run of a memory
        folder = folder.parent
    hint = f"Restore a backup, or save the undamaged part: dualform check --repair {folder} --out COPY"
    if file.name in _IRREPLACEABLE:
        hint = f"Restore {folder} from a backup: nothing can be repaired without this file."
    return Damaged(f"{file} {what}.", hint=hint)


def unreadable(file: Path, error: BaseException, said: str = "cannot be read") -> DualformError:
    """The error for a file that could not be read: a shortage is not damage."""
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
    if isinstance(error, PermissionError):
        return Damaged(f"{file} {said}: {reason}.", hint="Allow this user to read the memory's folder.")
    short = shortage(error, f"{file} cannot be read: this process")
    return short or deleted_meanwhile(file) or damaged(file, f"{said}: {reason.rstrip('.')}")


def deleted_meanwhile(file: Path) -> Damaged | None:
    """None for a file that is there, and for one that its memory still names: that is damage."""
    for child, folder in () if file.is_file() else pairwise([file, *file.parents]):
        try:
            said = json.loads(read_regular(folder / "memory.json"))
            named = {part["folder"] for part in (*said["shards"], *said.get("runs", ()))}
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if "forgotten" in said and child.name.startswith(("shard-", "run-")) and child.name not in named:
            return Damaged(f"samples of {folder} were deleted since it was opened.", hint="Open it again.")
    return None


try:
    import fcntl
except ImportError:  # Windows: no file is written directly there
    fcntl = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20
_ALIGNED = 4096
_BLOCKS_AT_ONCE = 32
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
            file.write(parts, _BLOCKS_AT_ONCE)
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


class ByteCount:
    """A number that several threads add to. It is the process's: a fork goes on with a lock of its own."""

    def __init__(self) -> None:
        self.total = 0
        self._begin_anew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_anew)

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()


READ = ByteCount()
"""Tables, which DuckDB and Arrow read, are not in it."""


CODES, SUM = ".codes", ".sum"
"""How the names of such files end: codes of keys, and sums over slots."""
_TEMPORARY = ".tmp"
_PREFIX = struct.Struct("<8sQ16s")
_MAGIC = b"dualform"
_ARRAYS_ALIGNED = 64
_MOST_TEXT = 64 << 20
LEAST_BYTES = 4 << 20
"""Of the segments that something is kept of: what smaller ones give is made again within milliseconds."""
ABANDONED_SECONDS = 3600
"""After so long nobody writes an unfinished file any more: the process that did was killed."""
_FREE = 20
"""One part in so many of the disk stays free: a training that records there must not find it full."""


def is_derived(name: str) -> bool:
    """Whether a file of this name is one, finished or not."""
    return name.removesuffix(_TEMPORARY).endswith((CODES, SUM))


def aligned(size: int) -> NDArray[np.uint8]:
    """uint8[size] that begins on a cache line, holding anything."""
    room = np.empty(size + _ARRAYS_ALIGNED, np.uint8)
    start = -room.ctypes.data % _ARRAYS_ALIGNED
    return room[start : start + size]


@dataclass(frozen=True)
class DerivedFile:
    """One whose prefix and text are sound; each part is held against its checksum when it is read."""

    path: Path
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    checksums: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, kind: str, of: str) -> DerivedFile | None:
        """None where there is no such file, or not of this kind and origin."""
        try:
            with open_regular(path) as file:
                magic, length, digest = _PREFIX.unpack(file.read(_PREFIX.size))
                if magic != _MAGIC or length > _MOST_TEXT:
                    return None
                text, size = file.read(length), os.fstat(file.fileno()).st_size
            if block_checksum(text) != digest:
                return None
            said = json.loads(text)
            if (said["derived"], said["of"]) != (kind, of):
                return None
            sizes, checksums = tuple(map(index, said["sizes"])), tuple(map(str, said["checksums"]))
            starts = tuple(_starts(_PREFIX.size + length, sizes))
            fits = min(sizes) >= 0 and len(sizes) == len(checksums) and starts[-1] + sizes[-1] == size
            return cls(path, starts, sizes, checksums) if fits else None
        except (OSError, struct.error, ValueError, LookupError, TypeError, RecursionError):
            return None

    def read(self, number: int, room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        """One part, in `room` where that is given; None where it is not what was written."""
        size = self.sizes[number]
        part = (aligned(size) if room is None else room)[:size]
        try:
            with open_regular(self.path) as file:
                file.seek(self.starts[number])
                left = part.data
                while left and (got := file.readinto(left)):
                    left = left[got:]
        except OSError:
            return None
        READ.add(size - len(left))
        return part if not left and checksum(part.data) == self.checksums[number] else None


def write_derived(path: Path, kind: str, of: str, parts: Sequence[Sequence[NDArray[Any]]]) -> None:
    """Parts of arrays, C-contiguous, one after the other. Nothing happens where there is no room or no permission."""
    pieces = [[array.reshape(-1).view(np.uint8) for array in part] for part in parts]
    whole = [part[0] if len(part) == 1 else np.concatenate(part) for part in pieces]
    sizes = [len(part) for part in whole]
    said = {"derived": kind, "of": of, "sizes": sizes, "checksums": [checksum(part.data) for part in whole]}
    text = json.dumps(said).encode()
    temporary = path.with_name(path.name + _TEMPORARY)
    _remove_abandoned(path.parent)
    # Whoever else derives the same at this moment writes the same bytes, under the same names.
    with suppress(OSError):
        disk = shutil.disk_usage(path.parent)
        if (disk.free - sum(sizes)) * _FREE < disk.total:
            return
        try:
            content = [memoryview(_PREFIX.pack(_MAGIC, len(text), block_checksum(text)) + text)]
            end = len(content[0])
            for start, array in zip(_starts(end, sizes), whole, strict=True):
                content += [memoryview(bytes(start - end)), array.data]
                end = start + len(array)
            write_new(temporary, content, durable=False)
            rename(temporary, path)
        except OSError:
            remove(temporary)


def _remove_abandoned(folder: Path) -> None:
    """Removes unfinished files that nobody writes any more.

    A process that was asleep for so long finds its file gone, or another's in its place: then it keeps nothing, or what
    does not pass its checksums.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_TEMPORARY) and is_derived(entry.name):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                        remove(Path(entry.path))


def _starts(end: int, sizes: Sequence[int]) -> Iterator[int]:
    """Where each part begins, behind what ends at `end`."""
    room = [-(-size // _ARRAYS_ALIGNED) * _ARRAYS_ALIGNED for size in sizes]
    return accumulate(room[:-1], initial=-(-end // _ARRAYS_ALIGNED) * _ARRAYS_ALIGNED) if sizes else iter(())
