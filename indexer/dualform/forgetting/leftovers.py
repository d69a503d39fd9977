"""What lies in a memory's folder and is no part of the memory: it may hold what was forgotten."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from dualform.store.durable_files import sync_folder
from dualform.store.leftovers import leftovers


def remove_leftovers(folder: Path) -> None:
    """Raises NotAMemory or Damaged as reading its manifest does."""
    found = leftovers(folder)
    for path in found:
        if path.is_dir():
            _remove(path)
        else:
            path.unlink()
    for parent in {path.parent for path in found}:
        if parent.is_dir():
            sync_folder(parent)


def _remove(folder: Path) -> None:
    """Once more, where a process that has the memory open put a file of codes there while it was removed."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        shutil.rmtree(folder)
