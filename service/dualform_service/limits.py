"""How many questions and bytes a server holds at once, and when work on a question stops."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dualform.errors import Cancelled, DualformError, Overloaded, TimedOut
from dualform_service.turns import Asker


class Places:
    """A fixed number of places for questions. A question that finds none is refused at once: queues hide overload."""

    def __init__(self, count: int, what: str, option: str) -> None:
        """`what` takes them; `option` raises their number."""
        self._count, self._what, self._option = count, what, option
        self._held = Counter[str]()
        """By asker."""

    @contextmanager
    def one(self, asker: Asker) -> Iterator[None]:
        """Hold a place. Raises Overloaded if none is free, or the asker has all that it may have."""
        if self._held.total() >= self._count or self._held[asker.name] >= asker.most(self._count):
            full = self._held.total() >= self._count
            raise Overloaded(
                f"The server already holds {self._count} {self._what}."
                if full
                else f"The server already holds {asker.most(self._count)} {self._what} of this token, half of all.",
                hint=f"Ask again in a moment, or start it with a larger {self._option}.",
            )
        self._held[asker.name] += 1
        try:
            yield
        finally:
            self._held[asker.name] -= 1
            if not self._held[asker.name]:
                del self._held[asker.name]


class ByteRoom:
    """So many bytes that may be held at once, on one event loop."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    def take_now(self, size: int) -> bool:
        """Whether there was room for so many."""
        if self._waiting or size > self._free:
            return False
        self._free -= size
        return True

    async def take(self, size: int) -> None:
        """Returns once there is room, first come, first served."""
        if self.take_now(size):
            return
        own = asyncio.get_running_loop().create_future()
        self._waiting.append((size, own))
        try:
            await own
        except asyncio.CancelledError:
            if own.cancelled():
                with suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove((size, own))
                self._serve()
            else:
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        self._free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, own = self._waiting.popleft()
            if not own.done():
                self._free -= size
                own.set_result(None)


class Deadline:
    """When one call must stop: at the caller's deadline, at the server's own, or when the caller has gone.

    Threads may ask it, too.
    """

    def __init__(self, seconds: float | None, longest: float) -> None:
        """`seconds` that its caller gives it; None for as long as it takes."""
        self._seconds = longest if seconds is None else min(longest, seconds)
        self._end = time.monotonic() + self._seconds
        self._ended = False

    def end(self) -> None:
        """The call has ended, whoever ended it."""
        self._ended = True

    def passed(self) -> bool:
        return self._ended or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def error(self) -> DualformError:
        if time.monotonic() < self._end:
            return Cancelled("The caller went away before the answer was ready.")
        return TimedOut(
            f"The answer was not ready within {self._seconds:.3g} s.",
            hint="Ask with fewer queries, give a longer timeout, or start the server with a longer --deadline.",
        )
