"""What a question will read of a memory's folder, asked of the disk before anything else is loaded.

Python takes as long to load a process's libraries as a disk takes to read some hundred megabytes: it may do both at
once. Nothing depends on it; whoever reads finds the files in the page cache, or waits for them as before.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

_MANIFEST, _TABLES, _CODES = "memory.json", "slots.duckdb", ".codes"
READERS = 4
"""Threads: a disk reads several files at once sooner than one after the other."""


def read_ahead(folder: str, layers: Sequence[str], query_sets: Sequence[str] = (), *, codes: bool = True) -> None:
    """Has the system read a memory's tables, the queries that query sets hold of some layers, and, with `codes`, the
    codes of those layers' keys, in threads; errors go unsaid.

    A name that is no layer's, or no query set's, brings nothing.
    """
    files, turn = _within(_memory() // 2, _files(folder, layers, query_sets, codes)), threading.Lock()
    for _ in range(READERS):
        threading.Thread(target=_read, args=(files, turn), name="dualform-ahead", daemon=True).start()


def _read(files: Iterator[tuple[str, int]], turn: threading.Lock) -> None:
    """Files that no other reader has taken.

    Advice (POSIX_FADV_WILLNEED) would bring no more of a file than one window of the system's own reading ahead.
    Nothing is copied on the way to the null device, and one call brings a whole file, so that Python's lock is hardly
    asked for.
    """
    with suppress(OSError, AttributeError, UnicodeError), open(os.devnull, "wb", buffering=0) as nowhere:
        while True:
            with turn:
                path, size = next(files, ("", 0))
            if not path:
                return
            with suppress(OSError), open(path, "rb", buffering=0) as file:
                read = 0
                while sent := os.sendfile(nowhere.fileno(), file.fileno(), read, size - read):
                    read += sent


def _within(most: int, paths: Iterator[str]) -> Iterator[tuple[str, int]]:
    """Files and their bytes, as far as they fit; those that are missing are left out."""
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            most -= status.st_size
            if most < 0:
                return
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size


def _files(folder: str, layers: Sequence[str], query_sets: Sequence[str], codes: bool) -> Iterator[str]:
    """In the order in which a question reads them."""
    from urllib.parse import quote  # as Layer.folder has it

    own = [quote(layer, safe="") or "%" for layer in layers]
    yield os.path.join(folder, _MANIFEST)
    shards = sorted(entry.path for entry in _entries(folder) if entry.name.startswith("shard-"))
    yield from (os.path.join(shard, _TABLES) for shard in shards)
    yield from (
        os.path.join(folder, "probes", query_set, f"queries-{layer}.npy") for query_set in query_sets for layer in own
    )
    for shard in shards if codes else ():
        for layer in own:
            files = _entries(os.path.join(shard, "layers", layer))
            yield from sorted(entry.path for entry in files if entry.name.endswith(_CODES))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _memory() -> int:
    """What the machine has, in bytes; 0 where it does not say."""
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
