"""Opening the memories of one server, which share one budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dualform.query.engine import Engine, open_memory
from dualform.store.machine_memory import memory_bytes
from dualform.store.memory_budget import MemoryBudget

SHARE = 5 / 8
"""Of the machine's memory, that several take together: as one does of itself, a half for keys and values and an eighth
for their codes."""


def opening(memory: int | None, several: bool) -> Callable[[Path], Engine]:
    """What opens a memory. `memory`: bytes that the process may take; None for as much as a memory takes of itself."""
    if memory is None and not several:
        return open_memory
    budget = MemoryBudget.shared(int(SHARE * memory_bytes()) if memory is None else memory)
    opened: list[Path] = []

    def open_one(path: Path) -> Engine:
        # All that the process holds already counts once, of each further memory what its own tables take.
        engine = open_memory(path, memory=budget, whole_process=not opened)
        opened.append(path)
        return engine

    return open_one
