"""One process at a time that names other shards or runs in a memory: it forgets samples, or begins a further run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dualform.errors import Locked
from dualform.store.manifest import Manifest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """`wait`: for a training, which goes on whatever holds it up, also where the file system has no locks.

    On systems without such locks, as Windows, nothing is locked; who does not wait is warned of it.

    Raises Locked where another process has this moment of the same folder, and NotAMemory where there is none.
    """
    Manifest.read(folder)
    if fcntl is None:
        if not wait:
            warnings.warn(
                f"this system has no locks of folders: let no other process forget samples of {folder}, or record into "
                "it, until this is done.",
                RuntimeWarning,
                stacklevel=3,
            )
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if wait:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        else:
            _try(handle, folder)
        yield
    finally:
        os.close(handle)


def _try(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Locked(
            f"another process forgets samples of {folder}, or begins to record into it.", hint="Wait until it is done."
        ) from None
