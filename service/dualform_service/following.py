"""Following a training that still runs: a look for newer commits, now and then, off the threads that answer."""

from __future__ import annotations

import logging
import threading

from dualform.errors import DualformError
from dualform_service.engine import Engine

_log = logging.getLogger("dualform.service")


class Follower:
    """Refreshes an engine every few seconds, for as long as its memory is being recorded."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="dualform-follow", daemon=True)

    def start(self) -> None:
        if self._engine.recording:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._engine.refresh()
                if not self._engine.recording:
                    return
            except DualformError as error:
                # The snapshot in hand still answers; the next look may find the folder whole again.
                _log.warning("no newer snapshot: %s", error)
