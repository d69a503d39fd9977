"""The memories of a server: how they are opened and named, and how those that still grow are followed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dualform.errors import BadInput, DualformError, NotAMemory, NotFound
from dualform.query.engine import Engine as OpenedEngine, open_memory
from dualform.store.files.ram_budget import RamBudget, memory_bytes
from dualform_proto.calls import MEMORY, memory_of
from dualform_service.metrics import Engine
from dualform_service.servicer import MemoryServicer

_log = logging.getLogger("dualform.service")


class Follower:
    """Refreshes an engine every few seconds: a training may still run, or go on in a memory that has ended."""

    def __init__(self, engine: Engine, seconds: float, there: Callable[[bool], object] = lambda there: None) -> None:
        """`there` is told where the memory's folder has gone, and where it is back."""
        self._engine = engine
        self._seconds, self._tell, self._there, self._said = seconds, there, True, ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="dualform-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(self._seconds):
            said, there = "", True
            try:
                self._engine.refresh()
            except (DualformError, OSError) as error:
                # The snapshot in hand still answers; the next look may find the folder whole again.
                there = not isinstance(error, NotAMemory)
                said = f"{'no newer snapshot' if there else 'the memory is gone'}: {error}"
            if said and said != self._said:
                _log.warning("%s", said)
            if there != self._there:
                self._tell(there)
            self._said, self._there = said, there


SHOWN, CHARACTERS = 20, 100
"""Names that a refusal lists, and characters of each."""


class Memories:
    def __init__(self, servicers: Mapping[str, MemoryServicer]) -> None:
        """By name; at least one."""
        self._servicers = dict(servicers)

    def of(self, metadata: Iterable[tuple[str, str | bytes]]) -> tuple[str, MemoryServicer]:
        """The memory that a call names, with its name; the only one where it names none.

        Raises BadInput where it names none of several, NotFound where there is no such memory.
        """
        name = memory_of(metadata)
        if name in self._servicers:
            return name, self._servicers[name]
        if name:
            raise NotFound(
                f"This server does not serve a memory {name[:CHARACTERS]!r}.", hint=self._listed(), field="memory"
            )
        if len(self._servicers) > 1:
            raise BadInput(
                "This server serves several memories, and the call does not name one.",
                hint=f"{self._listed()} Ask at host:port/NAME, or send the metadata {MEMORY}.",
                field="memory",
            )
        return next(iter(self._servicers.items()))

    def waiting(self) -> int:
        """Questions that wait for the scan that they share to begin."""
        return sum(one.batches.waiting() for one in self._servicers.values())

    def _listed(self) -> str:
        names = [name[:CHARACTERS] for name in self._servicers if name]
        more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (
            f"Memories: {', '.join(names[:SHOWN])}{more}."
            if names
            else "It serves one memory, without a name: ask at host:port."
        )


def named(paths: Iterable[Path]) -> dict[str, Path]:
    """Folders by the name under which each is asked, which is the folder's own. Raises BadInput for two of a name."""
    found: dict[str, Path] = {}
    for path in paths:
        name = path.absolute().name
        if name in found:
            raise BadInput(
                f"{found[name]} and {path} have the same name {name!r}.",
                hint="Rename one of the folders, or serve it at another port.",
                field="run",
            )
        found[name] = path
    return found


SHARE = 5 / 8
"""Of the machine's memory, that several take together: as one does of itself, a half for keys and values and an eighth
for their codes."""


def opening(ram: int | None, several: bool) -> Callable[[Path], OpenedEngine]:
    """What opens a memory. `ram`: bytes that the process may take; None for as much as a memory takes of itself."""
    if ram is None and not several:
        return open_memory
    budget = RamBudget.shared(int(SHARE * memory_bytes()) if ram is None else ram)
    opened: list[Path] = []

    def open_one(path: Path) -> OpenedEngine:
        # All that the process holds already counts once, of each further memory what its own tables take.
        engine = open_memory(path, ram=budget, whole_process=not opened)
        opened.append(path)
        return engine

    return open_one
