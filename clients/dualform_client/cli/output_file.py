"""The file that a command is to write: whether it can, before anything is computed."""

from __future__ import annotations

import os
from pathlib import Path

from dualform.errors import AlreadyExists, FolderError


def check_output_file(out: Path, force: bool, field: str) -> None:
    """Raises AlreadyExists, or FolderError for what no file can take the place of. `field`: the option naming it."""
    folder = out.parent
    if not folder.is_dir():
        there = f"{folder} is a file" if folder.exists() else f"There is no folder {folder}"
        raise FolderError(f"{there}.", hint="Make the folder first, or name another file.", field=field)
    if out.exists() and not out.is_file():
        raise FolderError(f"{out} is no file that could be replaced.", hint="Name a file to write.", field=field)
    if out.exists() and not force:
        raise AlreadyExists(f"{out} exists.", hint="Name another file, or replace it with --force.", field=field)
    if not os.access(folder, os.W_OK):
        raise FolderError(f"{folder} may not be written into.", hint="Name a file elsewhere.", field=field)
