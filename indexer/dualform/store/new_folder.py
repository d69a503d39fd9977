"""Whether a memory, or a shard of one, can be begun in a folder without touching what is there."""

from __future__ import annotations

from pathlib import Path

from dualform.errors import AlreadyExists, NotAMemory
from dualform.store.duckdb_path import check_writable
from dualform.store.manifest import Manifest, Shard


def check_new_folder(path: Path) -> None:
    """Raises AlreadyExists where a memory cannot be recorded into `path` without touching what is there, and BadInput
    where it could not be written.
    """
    check_writable(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AlreadyExists(
            f"{path} already exists and is not an empty folder.", hint="Record into a new folder, or remove this one."
        )


def check_new_shard(path: Path, part: Shard) -> None:
    """Raises NotAMemory where no memory waits for this shard, AlreadyExists where it has been written."""
    if part.folder not in [known.folder for known in Manifest.read(path).shards]:
        raise NotAMemory(f"{path} has no place for {part.folder}.", hint="Say how many shards there are: shards=…")
    if (path / part.folder).exists():
        raise AlreadyExists(f"{path / part.folder} already exists.", hint="Record into a new folder.")
