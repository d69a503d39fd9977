"""What a supervisor as systemd is told: that the server is ready, that it stops, and that it is alive.

As sd_notify has it: a datagram of `NAME=VALUE` on the Unix socket that NOTIFY_SOCKET names; without one, none.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress


class Supervisor:
    """Whoever started the process, where that wants to know."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._place = environment.get("NOTIFY_SOCKET", "")
        self._seconds = _watched(environment) if self._place else None
        self._draining, self._closed = False, threading.Event()

    def ready(self, soon: Callable[[Callable[[], object]], object]) -> None:
        """The server takes questions. `soon` has its event loop call something: where the loop hangs, nothing more is
        said, and a supervisor that watches starts the server anew.
        """
        self._tell("READY=1")
        if self._seconds is not None:
            threading.Thread(target=self._watch, args=(self._seconds / 2, soon), daemon=True).start()

    def stopping(self) -> None:
        """The server drains, in a time that has a bound of its own; its loop ends before it does."""
        self._draining = True
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Nothing more is said."""
        self._closed.set()

    def _watch(self, seconds: float, soon: Callable[[Callable[[], object]], object]) -> None:
        while not self._closed.wait(seconds):
            if self._draining:
                self._alive()
            else:
                with suppress(RuntimeError):  # the loop has ended just now
                    soon(self._alive)

    def _alive(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, said: str) -> None:
        if not self._place:
            return
        # A name that begins with @ is one of the abstract namespace.
        place = "\0" + self._place[1:] if self._place.startswith("@") else self._place
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.setblocking(False)
            notifying.sendto(said.encode(), place)


def _watched(environment: Mapping[str, str]) -> float | None:
    """Seconds within which a sign of life is wanted; None for never, and where it is another process's."""
    own = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if own and microseconds.isdecimal() and int(microseconds) else None
