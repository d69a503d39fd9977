"""How much of the disk a process's part of a memory takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from dualform.store.derived_file import is_derived

_SHARD = re.compile(r"shard-\d{5,}")
_SECTOR = 512
"""What st_blocks counts, whatever the file system's own blocks are."""


def disk_use(memory: Path, shard: str | None = None) -> int:
    """Bytes that a memory's files and folders take: of all; or of one `shard` by the name of its folder, whose first
    one counts weights, query sets and whatever else is not a shard's.
    """
    return sum(_taken(entry) for entry in _entries(memory, shard, inside=shard is None))


def _entries(folder: Path, shard: str | None, inside: bool) -> Iterator[os.stat_result]:
    """`inside`: whether the folder is counted itself, which it is in the shard and, for the first one, outside."""
    try:
        found = list(os.scandir(folder))
    except FileNotFoundError:  # nothing was written yet, or what was temporary went meanwhile
        return
    own = inside or shard == "shard-00000"
    for entry in found:
        try:
            state = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not entry.is_dir(follow_symlinks=False):
            if own and not is_derived(entry.name):
                yield state
        elif inside or not _SHARD.fullmatch(entry.name):
            if own:
                yield state
            yield from _entries(Path(entry.path), shard, inside)
        elif entry.name == shard:
            yield state
            yield from _entries(Path(entry.path), shard, True)


def _taken(state: os.stat_result) -> int:
    """What a file system that compresses takes less may have to be taken once it is copied."""
    return max(state.st_size, getattr(state, "st_blocks", 0) * _SECTOR)
