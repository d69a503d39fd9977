"""Content of segments that stays in memory between two questions."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from dualform.store.segment import Segment, SegmentBuffer


class SegmentCache:
    """Content of segments held in memory, the least recently used dropped beyond a number of bytes."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = memory_bytes() // 2 if most_bytes is None else most_bytes
        self._held: OrderedDict[Hashable, SegmentBuffer] = OrderedDict()
        self._lock = Lock()

    def get(self, segment: Segment, make: Callable[[], SegmentBuffer]) -> SegmentBuffer:
        """The buffer of a segment, made where it is not held; one that could never be held is nobody else's."""
        with self._lock:
            held = self._held.get(segment.identity)
            if held is None:
                held = make()
                if segment.size > self._most:
                    return held
                self._held[segment.identity] = held
            self._held.move_to_end(segment.identity)
            return held

    def settle(self) -> None:
        """Drop what is too much, after something was read."""
        with self._lock:
            size = sum(buffer.filled for buffer in self._held.values())
            while size > self._most:
                size -= self._held.popitem(last=False)[1].filled

    def clear(self) -> None:
        """Let go of everything; whoever is reading keeps what it has."""
        with self._lock:
            self._held.clear()


def memory_bytes() -> int:
    """What the machine has, or what its container may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit, or "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory
