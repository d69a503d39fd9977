"""What a fork does to a process with threads: it copies one of them, and every lock as it stands at that moment.

What an object keeps behind locks belongs to the process that made it, and is refused elsewhere (`OwnProcess`). What a
process opens anew must not meet a lock that nobody will let go of: a fork waits for such work (`held_back`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_SECONDS = 10.0
"""That a fork waits. Opening a DuckDB file and reading its tables takes some hundredths of a second."""

_forked = False
_changed = threading.Condition()
_inside = 0
"""How many threads do work that a fork waits for."""


class OwnProcess:
    """The process that made an object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is that process, and no fork of it."""
        return os.getpid() == self._id


def forked() -> bool:
    """Whether this process is a fork of one that had dualform loaded."""
    return _forked


@contextmanager
def held_back() -> Iterator[None]:
    """Forks wait for the work inside, MOST_SECONDS at most: it holds locks of DuckDB that a whole process shares."""
    global _inside
    with _changed:
        _inside += 1
    try:
        yield
    finally:
        with _changed:
            _inside = max(0, _inside - 1)  # a fork of this very thread began anew
            _changed.notify_all()


def _wait() -> None:
    _changed.acquire()
    _changed.wait_for(lambda: not _inside, timeout=MOST_SECONDS)


def _go_on() -> None:
    _changed.release()


def _begin_anew() -> None:
    global _forked, _changed, _inside
    _forked, _changed, _inside = True, threading.Condition(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin_anew)
