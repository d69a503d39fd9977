"""What is done before heavy libraries are loaded: the allocator is set, and files are read ahead.

What a question will read of a memory's folder, asked of the disk before anything else is loaded.

Python takes as long to load a process's libraries as a disk takes to read some hundred megabytes: it may do both at
once. Nothing depends on it; whoever reads finds the files in the page cache, or waits for them as before.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

ARENAS = 2
"""Pools of memory that the threads of a server share."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of glibc's parameters (malloc.h)."""
_LARGE_BYTES, _KEPT_BYTES = 4 << 20, 2 << 20
"""From how many a block is mapped by itself, and how many an arena keeps at its end: files are read in blocks of half
as many, again and again, and a page that comes back from the system costs more than filling it."""


def return_large_blocks() -> None:
    """Have the system get large blocks back as soon as they are freed, in the whole process and from now on.

    Untold, glibc maps single blocks only from the size of the largest it has seen freed, up to 32 MiB: smaller arrays
    lie in arenas, up to eight for each core, each of which keeps as much as twice that at its end, where `malloc_trim`
    does not look. Does nothing where the C library is another; libraries with allocators of their own, as DuckDB, keep
    to those.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc's, or no C library that this process could ask
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def bound_arenas() -> None:
    """Has threads that begin from now on share ARENAS pools of memory (glibc; other libraries have no such setting).

    By default there are eight for each processor, and what is free in one serves no thread of another: under a steady
    load a server holds more and more that it does not use.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, ARENAS)


@contextmanager
def free_pages_returned(seconds: float) -> Iterator[None]:
    """Inside, the system gets back every so many seconds what is free between blocks that are in use (glibc)."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            return_free_pages()

    thread = threading.Thread(target=run, name="dualform-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def return_free_pages() -> None:
    """Takes some milliseconds for each hundred MB, in which other threads may wait for memory."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


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
