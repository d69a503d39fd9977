"""Who writes to a memory: locks on its folder and its shards, and what a fork does to them.

Who writes a shard at this moment: a lock on its file `writing`, held by the writer's process while it lives.

A POSIX record lock goes with its process, however that ends, and not with the process's forks; and whoever reads can
ask for it without taking it. Closing any descriptor of a file lets go of all such locks that the process holds on it:
a reader asks the writers of its own process first, and opens the file only where none of them has it.

What a fork does to a process with threads: it copies one of them, and every lock as it stands at that moment.

What an object keeps behind locks belongs to the process that made it, and is refused elsewhere (`OwnProcess`). What a
process opens anew must not meet a lock that nobody will let go of: a fork waits for such work (`held_back`).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dualform.errors import DualformError, Locked
from dualform.store.files.durable_files import WrittenFile, open_regular, read_regular, remove
from dualform.store.manifest import Manifest

MOST_SECONDS = 10.0
"""That a fork waits. Opening a DuckDB file and reading its tables takes some hundredths of a second."""

_forked = False
_changed = threading.Condition()
_inside = 0
"""How many threads do work that a fork waits for."""


class OwnProcess:
    """The process that made an object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is that process, and no fork of it."""
        return os.getpid() == self._id


def forked() -> bool:
    """Whether this process is a fork of one that had dualform loaded."""
    return _forked


@contextmanager
def held_back() -> Iterator[None]:
    """Forks wait for the work inside, MOST_SECONDS at most: it holds locks of DuckDB that a whole process shares."""
    global _inside
    with _changed:
        _inside += 1
    try:
        yield
    finally:
        with _changed:
            _inside = max(0, _inside - 1)  # a fork of this very thread began anew
            _changed.notify_all()


def _wait() -> None:
    _changed.acquire()
    _changed.wait_for(lambda: not _inside, timeout=MOST_SECONDS)


def _go_on() -> None:
    _changed.release()


def _begin_anew() -> None:
    global _forked, _changed, _inside
    _forked, _changed, _inside = True, threading.Condition(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin_anew)


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


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """`wait`: for a training, which goes on whatever holds it up, also where the file system has no locks.

    On systems and file systems without such locks nothing is locked; who does not wait is warned of it.

    Raises Locked where another process has this moment of the same folder, and NotAMemory where there is none.
    """
    Manifest.read(folder)
    refusal = Locked(
        f"{folder} is locked: another process deletes samples of it, or starts to record into it.",
        hint="Wait until that process is done.",
    )
    with held_alone(folder, None if wait else refusal) as held:
        if not held and not wait:
            warnings.warn(
                f"This system cannot lock {folder}. Do not delete samples of it or record into it from another process "
                "until this is done.",
                RuntimeWarning,
                stacklevel=3,
            )
        yield


@contextmanager
def held_alone(folder: Path, refusal: DualformError | None) -> Iterator[bool]:
    """A moment in which no other process has this one of a folder; whether it is so, for some systems have no such
    locks. `refusal` is raised where another process has it; where it is None, that is waited for.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _held(handle, refusal)
    finally:
        os.close(handle)


def _held(handle: int, refusal: DualformError | None) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if refusal is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        assert refusal is not None
        raise refusal from None
    except OSError:  # the file system has no locks
        return False
    return True
