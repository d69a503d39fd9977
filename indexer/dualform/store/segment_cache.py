"""Content of segments that stays in memory between two questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock

from dualform.store.machine_memory import memory_bytes
from dualform.store.ram_budget import RamBudget
from dualform.store.recent_blocks import RecentBlocks
from dualform.store.segment import Segment, SegmentBuffer


class SegmentCache:
    """Content of segments held in memory, the least recently used dropped beyond a budget."""

    def __init__(self, most_bytes: int | None = None, budget: RamBudget | None = None) -> None:
        """`most_bytes`: half of the machine's memory where it is None, and no budget is shared with others."""
        self._budget = budget or RamBudget(memory_bytes() // 2 if most_bytes is None else most_bytes)
        self.shares = budget is not None
        """Whether others count on what is read being counted: then nothing is read past the cache."""
        self.recent = RecentBlocks()
        """Of what is gone through once, and not held."""
        self._owner = object()
        self._passed = set[Hashable]()
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._budget.bytes_of(self._owner)

    def get(self, segment: Segment, make: Callable[[], SegmentBuffer]) -> SegmentBuffer:
        """The buffer of a segment, made where it is not held; one that could never be held is nobody else's."""
        with self._lock:
            held: SegmentBuffer | None = self._budget.find(self._owner, segment.identity)
            if held is None:
                held = make()
                if segment.size <= self._budget.largest:
                    self._budget.keep(self._owner, segment.identity, held, 0)
            return held

    def find(self, segment: Segment) -> SegmentBuffer | None:
        """The buffer of a segment if it is held."""
        found: SegmentBuffer | None = self._budget.find(self._owner, segment.identity)
        return found

    def passed(self, segment: Segment) -> bool:
        """Whether this was asked of the segment before."""
        with self._lock:
            before = segment.identity in self._passed
            self._passed.add(segment.identity)
        return before

    def settle(self, segment: Segment, buffer: SegmentBuffer) -> None:
        """Drop what is too much, after something was read into the buffer of a segment."""
        with self._lock:
            if self._budget.find(self._owner, segment.identity) is buffer:
                self._budget.keep(self._owner, segment.identity, buffer, buffer.filled)

    def clear(self) -> None:
        """Let go of everything; whoever is reading keeps what it has."""
        self._budget.forget(self._owner)
        self.recent.clear()
