"""How many questions are answered at once, and when work on one stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from dualform.errors import Cancelled, DualformError, Overloaded, TimedOut


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


class Deadline:
    """When one call must stop: at the caller's deadline, at the server's own, or when the caller has gone."""

    def __init__(self, context: grpc.ServicerContext, longest: float) -> None:
        allowed = context.time_remaining()
        self._context = context
        self._seconds = longest if allowed is None else min(longest, allowed)
        self._end = time.monotonic() + self._seconds

    def passed(self) -> bool:
        return time.monotonic() >= self._end or not self._context.is_active()

    def remaining(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def on_end(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when the call ends, whoever ends it, or at once if it has ended."""
        if not self._context.add_callback(ended):
            ended()

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
