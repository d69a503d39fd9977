"""The C library's allocator, which keeps what is freed unless it is told not to."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
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
