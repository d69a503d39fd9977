"""How many questions are answered at once, and when work on one stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dualform.errors import Cancelled, DualformError, Overloaded, TimedOut

_LOOK = 0.05
"""Seconds between looks whether whoever waits for room still has to."""


class Places:
    """A fixed number of places for questions. A question that finds none is refused at once: queues hide overload."""

    def __init__(self, count: int, full: str, option: str) -> None:
        """`full` says that all are taken, with the number in place of {}; `option` raises it."""
        self._full, self._option = full.format(count), option
        self._free = threading.BoundedSemaphore(count)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place. Raises Overloaded if none is free."""
        if not self._free.acquire(blocking=False):
            raise Overloaded(self._full, hint=f"Ask again in a moment, or start it with a larger {self._option}.")
        try:
            yield
        finally:
            self._free.release()


class ByteRoom:
    """So many bytes that may be held at once."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._changed = threading.Condition()

    def take_now(self, size: int) -> bool:
        """Whether there was room for so many."""
        with self._changed:
            if size > self._free:
                return False
            self._free -= size
            return True

    def take(self, size: int, deadline: Deadline) -> None:
        """Waits for room. Raises TimedOut or Cancelled once the call must stop."""
        while not self.take_now(size):
            deadline.check()
            with self._changed:
                self._changed.wait(_LOOK)

    def give_back(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()


class CallState:
    """Whether a call goes on, for threads that may ask nothing of the transport."""

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds` that its caller gives it; None for as long as it takes."""
        self.seconds = seconds
        self._lock = threading.Lock()
        self._told = list[Callable[[], None]]()
        self._ended = False

    @property
    def active(self) -> bool:
        return not self._ended

    def on_end(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when the call ends, whoever ends it, or at once if it has ended."""
        with self._lock:
            if not self._ended:
                self._told.append(ended)
                return
        ended()

    def end(self) -> None:
        with self._lock:
            self._ended, told = True, self._told
        for tell in told:
            tell()


class Deadline:
    """When one call must stop: at the caller's deadline, at the server's own, or when the caller has gone."""

    def __init__(self, call: CallState, longest: float) -> None:
        self._call = call
        self._seconds = longest if call.seconds is None else min(longest, call.seconds)
        self._end = time.monotonic() + self._seconds

    def passed(self) -> bool:
        return time.monotonic() >= self._end or not self._call.active

    def remaining(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def on_end(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when the call ends, whoever ends it, or at once if it has ended."""
        self._call.on_end(ended)

    def check(self) -> None:
        """Raises TimedOut or Cancelled if the call must stop."""
        if self.passed():
            raise self.error()

    def error(self) -> DualformError:
        if time.monotonic() < self._end:
            return Cancelled("The caller went away before the answer was ready.")
        return TimedOut(
            f"The answer was not ready within {self._seconds:.3g} s.",
            hint="Ask with fewer queries, give a longer timeout, or start the server with a longer --deadline.",
        )
