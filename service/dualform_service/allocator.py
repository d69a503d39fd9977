"""How the C library hands out this process's memory."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

ARENAS = 2
"""Pools that threads share."""
_M_ARENA_MAX = -8
"""glibc's number of the setting."""


def bound_arenas() -> None:
    """Has threads that begin from now on share two pools of memory (glibc; other libraries have no such setting).

    By default there are eight for each processor, and what is free in one serves no thread of another: under a steady
    load a server holds more and more that it does not use.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # musl has no mallopt
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
