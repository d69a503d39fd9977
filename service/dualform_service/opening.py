"""Opening the memories of one server, which share one budget of RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dualform.query.engine import Engine, open_memory
from dualform.store.machine_memory import memory_bytes
from dualform.store.ram_budget import RamBudget

SHARE = 5 / 8
"""Of the machine's memory, that several take together: as one does of itself, a half for keys and values and an eighth
for their codes."""


def opening(ram: int | None, several: bool) -> Callable[[Path], Engine]:
    """What opens a memory. `ram`: bytes that the process may take; None for as much as a memory takes of itself."""
    if ram is None and not several:
        return open_memory
    budget = RamBudget.shared(int(SHARE * memory_bytes()) if ram is None else ram)
    opened: list[Path] = []

    def open_one(path: Path) -> Engine:
        # All that the process holds already counts once, of each further memory what its own tables take.
        engine = open_memory(path, ram=budget, whole_process=not opened)
        opened.append(path)
        return engine

    return open_one
