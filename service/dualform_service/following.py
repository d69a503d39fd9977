"""Following a memory: a look for newer commits, and whether its folder is there, off the threads that answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dualform.errors import DualformError, NotAMemory
from dualform_service.engine import Engine

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
