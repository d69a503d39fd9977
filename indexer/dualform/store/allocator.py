"""The C library's allocator, which keeps what is freed unless it is told not to."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
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
