"""What a question will read of a memory's folder, asked of the disk before anything else is loaded.

Python takes as long to load a process's libraries as a disk takes to read some hundred megabytes: it may do both at
once. Nothing depends on it; whoever reads finds the files in the page cache, or waits for them as before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

_MANIFEST, _TABLES, _CODES = "memory.json", "slots.duckdb", ".codes"


def read_ahead(folder: str, layers: Sequence[str]) -> None:
    """Has the system read a memory's tables and the codes of some layers' keys, in a thread; errors go unsaid.

    A name that is no layer's brings nothing.
    """
    if hasattr(os, "posix_fadvise"):
        threading.Thread(target=_read, args=(folder, layers), name="dualform-ahead", daemon=True).start()


def _read(folder: str, layers: Sequence[str]) -> None:
    most = _memory() // 2
    for path in _files(folder, layers):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                most -= os.fstat(descriptor).st_size
                if most < 0:
                    return
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def _files(folder: str, layers: Sequence[str]) -> Iterator[str]:
    """In the order in which a question reads them."""
    from urllib.parse import quote  # as Layer.folder has it

    yield os.path.join(folder, _MANIFEST)
    shards = sorted(entry.path for entry in _entries(folder) if entry.name.startswith("shard-"))
    yield from (os.path.join(shard, _TABLES) for shard in shards)
    for shard in shards:
        for layer in layers:
            own = _entries(os.path.join(shard, "layers", quote(layer, safe="") or "%"))
            yield from sorted(entry.path for entry in own if entry.name.endswith(_CODES))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _memory() -> int:
    """What the machine has, in bytes; 0 where it does not say."""
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
