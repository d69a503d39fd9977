"""What lies in a memory's folder and is no part of the memory: it may hold what was deleted."""

from __future__ import annotations

import errno
from pathlib import Path

from dualform.store.durable_files import remove_all, sync_folder
from dualform.store.leftovers import leftovers


def remove_leftovers(folder: Path) -> None:
    """Raises NotAMemory or Damaged as reading its manifest does."""
    found = leftovers(folder)
    for path in found:
        _remove(path)
    for parent in {path.parent for path in found}:
        if parent.is_dir():
            sync_folder(parent)


def _remove(path: Path) -> None:
    """A folder once more, where a process that has the memory open put a file of codes there while it was removed."""
    try:
        remove_all(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        remove_all(path)
