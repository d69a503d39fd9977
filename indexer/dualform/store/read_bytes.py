"""How much this process has read of memories' files: of keys, values and what is kept that derives from them."""

from __future__ import annotations

import os
import threading


class ByteCount:
    """A number that several threads add to. It is the process's: a fork goes on with a lock of its own."""

    def __init__(self) -> None:
        self.total = 0
        self._begin_anew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_anew)

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()


READ = ByteCount()
"""Tables, which DuckDB and Arrow read, are not in it."""
