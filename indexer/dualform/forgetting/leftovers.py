"""What lies in a memory's folder and is no part of the memory: it may hold what was forgotten."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualform.errors import Locked
from dualform.store.durable import sync_folder
from dualform.store.leftovers import leftovers
from dualform.store.manifest import Manifest


def remove_leftovers(folder: Path) -> None:
    """Raises NotAMemory or Damaged as reading its manifest does."""
    found = leftovers(folder)
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for parent in {path.parent for path in found}:
        if parent.is_dir():
            sync_folder(parent)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Raises Locked where another process has this moment, of the same folder, and NotAMemory where there is none."""
    Manifest.read(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"another process forgets samples of {folder}.", hint="Wait until it is done.") from None
        yield
    finally:
        os.close(handle)
