"""Engines that know nothing yet of the questions to come, over keys that were already read from disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dualform.query.engine import CACHE_BYTES, Engine
from dualform.query.score import backends
from dualform.store import derived_file
from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot

A = TypeVar("A")
BLOCK = 4096


class Fresh:
    """Engines that share the segments in memory, and nothing else."""

    def __init__(self, path: Path, backend: str | None) -> None:
        self._path, self._backend = path, backend
        self._segments = SegmentCache()

    def read(self, slots: int | None = None) -> None:
        """Read keys and values of the first slots (of all for None) from disk and check them."""
        memory = self.snapshot()
        for layer in memory.layers.values():
            keys = memory.keys(layer.name)
            last = keys.entries if slots is None else slots
            last_row = last if keys.row_of_entry is None else int(keys.row_of_entry[:last].max()) + 1
            for start in range(0, last_row, BLOCK):
                keys.block(start, min(start + BLOCK, last_row))
            if layer.values:
                values = memory.values(layer.name)
                for start in range(0, last, BLOCK):
                    values.block(start, min(start + BLOCK, last))

    def snapshot(self) -> Snapshot:
        return Snapshot.open(self._path, self._segments)

    def engine(self) -> Engine:
        return Engine(self.snapshot(), backends.choose(self._backend), CACHE_BYTES, self._segments)

    def measure(self, ask: Callable[[Engine], A], repeats: int) -> tuple[list[float], A]:
        """Seconds of the first question to one new engine after the other, and the last answer.

        Nobody asked before: sums that were kept beside the keys are neither read nor written.
        """
        measured, least = list[float](), derived_file.LEAST_BYTES
        derived_file.LEAST_BYTES = sys.maxsize
        for _ in range(repeats):
            with self.engine() as engine:
                began = time.perf_counter()
                answer = ask(engine)
                measured.append(time.perf_counter() - began)
        derived_file.LEAST_BYTES = least
        return measured, answer
