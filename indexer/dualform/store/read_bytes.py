"""How much this process has read of memories' files: of keys, values and what is kept that derives from them."""

from __future__ import annotations

import threading


class ByteCount:
    """A number that several threads add to."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size


READ = ByteCount()
"""Tables, which DuckDB and Arrow read, are not in it."""
