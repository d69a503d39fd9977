"""One process at a time that names other shards or runs in a memory: it deletes samples, or begins a further run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualform.errors import DualformError, Locked
from dualform.store.manifest import Manifest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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
