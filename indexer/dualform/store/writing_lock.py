"""Who writes a shard at this moment: a lock on its file `writing`, held by the writer's process while it lives.

A POSIX record lock goes with its process, however that ends, and not with the process's forks; and whoever reads can
ask for it without taking it. Closing any descriptor of a file lets go of all such locks that the process holds on it:
a reader asks the writers of its own process first, and opens the file only where none of them has it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dualform.errors import Locked
from dualform.store.durable_files import WrittenFile, open_regular, read_regular, remove

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "writing"
_MOST_BYTES = 4096
_LAYOUTS = {"linux": ("@hhqqi4x", 0), "darwin": ("@qqihh", 3)}
"""Of a system's `struct flock`: its layout, and where the kind of lock stands in it."""
_here: dict[tuple[int, int], tuple[int, Holder]] = {}
"""By device and number of the file: the process that locked it, which is this one or one that it is a fork of."""
_changing = threading.Lock()


@dataclass(frozen=True)
class Holder:
    """A process that writes a shard."""

    host: str
    process: int
    start: float
    """When it began to, in seconds since 1970."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@dataclass(frozen=True)
class Writing:
    """Whether a shard is written at this moment, and by whom."""

    going_on: bool | None
    """None where it cannot be told."""
    by: Holder | None = None
    """The process that writes it, where it said so."""
    here: bool = False
    """Whether it is this process. Numbers do not tell it: in containers many processes have number 1."""

    def __str__(self) -> str:
        return str(self.by or "another process")


class WritingLock:
    """Held by one writer."""

    def __init__(self, shard_folder: Path) -> None:
        """Where the file system has no locks, there is no such file. Raises Locked where another process has it, and
        OSError where it cannot be written.
        """
        self._process = os.getpid()
        self._file: WrittenFile | None = None
        if fcntl is None:
            return
        file = WrittenFile(shard_folder / FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(file.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.let_go()
            raise being_written(shard_folder, writing(shard_folder)) from None
        except OSError:  # the file system has no locks
            file.let_go()
            remove(file.path)
            return
        self._file = file
        own = Holder(socket.gethostname(), self._process, time.time())
        file.write([memoryview(json.dumps(asdict(own)).encode())])
        with _changing:
            _here[_number(file)] = self._process, own

    def release(self, *, ended: bool) -> None:
        """Let go. The file stays behind a recording that did not come to its end: it tells that nobody goes on.

        Raises OSError where it `ended` and the file cannot be removed or closed.
        """
        file, self._file = self._file, None
        if file is None or os.getpid() != self._process:
            return
        with _changing:
            _here.pop(_number(file), None)
        try:
            if ended:
                remove(file.path)
                file.close()
        finally:
            file.let_go()

    def __del__(self) -> None:
        """A writer that nobody has any more writes no more."""
        self.release(ended=False)


def writing(shard_folder: Path) -> Writing:
    """Who writes a shard.

    It cannot be told where there is no such file, as before it was part of the format, and where another computer
    wrote it and holds no lock that is seen here: some file systems keep locks to one computer.
    """
    path = shard_folder / FILE
    try:
        status = os.stat(path)
        with _changing:
            process, own = _here.get((status.st_dev, status.st_ino), (0, None))
        if own and process == os.getpid():
            return Writing(True, own, here=True)
        said = _said(read_regular(path)[:_MOST_BYTES])
        locked = _is_locked(path)
    except OSError:
        return Writing(None)
    if locked:
        return Writing(True, said)
    return Writing(None if locked is None or (said and said.host != socket.gethostname()) else False)


def being_written(shard_folder: Path, writer: Writing) -> Locked:
    """What a further writer is told."""
    return Locked(
        f"{shard_folder.parent} is being recorded by {writer}.",
        hint="End that process, or record into another folder.",
    )


def _is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock, without taking it; None where this system does not say."""
    if fcntl is None or sys.platform not in _LAYOUTS:
        return None
    layout, kind = _LAYOUTS[sys.platform]
    asked = [0] * 5
    asked[kind] = fcntl.F_WRLCK
    with open_regular(path) as file:
        found = struct.unpack(layout, fcntl.fcntl(file.fileno(), fcntl.F_GETLK, struct.pack(layout, *asked)))
    return bool(found[kind] != fcntl.F_UNLCK)


def _said(content: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):  # it is being written
        return None


def _number(file: WrittenFile) -> tuple[int, int]:
    status = os.fstat(file.handle)
    return status.st_dev, status.st_ino
