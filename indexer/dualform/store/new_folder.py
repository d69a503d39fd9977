"""Whether a memory, or a shard of one, can be begun in a folder without touching what is there.

A recorder that is killed while it creates a memory leaves a folder without memory.json, which is written last. That is
no memory yet: the next recorder clears it. A folder that holds anything else is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dualform.errors import AlreadyExists, DualformError, NotAMemory
from dualform.store import shard
from dualform.store.begun_folder import is_only_begun
from dualform.store.duckdb_path import check_writable
from dualform.store.durable_files import make_folders, remove_all
from dualform.store.folder_lock import held_alone
from dualform.store.manifest import Manifest, Shard, shard_folder
from dualform.store.writing_lock import Writing, being_written, writing


def check_new_folder(path: Path) -> None:
    """Raises AlreadyExists where a memory cannot be recorded into `path` without touching what is there, Locked where
    another process records into it, and BadInput where it could not be written.
    """
    check_writable(path)
    first = path / shard_folder(0)
    if first.is_dir() and (found := writing(first)).going_on:
        raise being_written(first, found)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not is_nothing(path))):
        raise AlreadyExists(
            f"{path} already exists and is not an empty folder.", hint="Record into a new folder, or remove this one."
        )


def check_new_shard(path: Path, part: Shard) -> None:
    """Raises NotAMemory where no memory waits for this shard, AlreadyExists where it has been written."""
    if part.folder not in [known.folder for known in Manifest.read(path).shards]:
        raise NotAMemory(
            f"{path} was not created for {part.folder}.", hint="Record with the same number of ranks on every rank."
        )
    if (path / part.folder).exists():
        raise AlreadyExists(f"{path / part.folder} already exists.", hint="Record into a new folder.")


def is_nothing(path: Path) -> bool:
    """Whether a folder holds no more than what a kill leaves while a memory is created: no rows, and nobody's files."""
    first = path / shard_folder(0)
    if not is_only_begun(path):
        return False
    if first.is_dir() and any(first.iterdir()) and writing(first).going_on is not False:
        return False  # somebody may be creating it at this moment
    database = first / shard.FILE
    if not database.is_file():
        return True
    try:
        with shard.opened(database, read_only=True) as connection:
            return not connection.execute("SELECT 1 FROM commits LIMIT 1").fetchall()
    except duckdb.Error:  # it was not whole yet
        return True
    except DualformError:
        return False


@contextmanager
def beginning(path: Path) -> Iterator[None]:
    """The moment in which one process begins a memory in a folder, which it makes, and has cleared of what is nothing.

    Every folder that is made on the way is on disk. Raises as `check_new_folder`, and Locked where another process is
    about to begin there, too.
    """
    check_new_folder(path)
    make_folders(path)
    with held_alone(path, being_written(path / shard_folder(0), Writing(True))):
        check_new_folder(path)
        for left in path.iterdir():
            remove_all(left)
        yield
