"""When work on a question stops."""

from __future__ import annotations

import time

from dualform.errors import Cancelled, DualformError, TimedOut


class Deadline:
    """When one call must stop: at the caller's deadline, at the server's own, or when the caller has gone.

    Threads may ask it, too.
    """

    def __init__(self, seconds: float | None, longest: float) -> None:
        """`seconds` that its caller gives it; None for as long as it takes."""
        self._seconds = longest if seconds is None else min(longest, seconds)
        self._end = time.monotonic() + self._seconds
        self._ended = False
        self._cut: DualformError | None = None

    def cut(self, error: DualformError) -> None:
        """The server ends the call by itself, for this reason."""
        self._cut = error

    def end(self) -> None:
        """The call has ended, whoever ended it."""
        self._ended = True

    def passed(self) -> bool:
        return self._ended or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def error(self) -> DualformError:
        if self._cut is not None:
            return self._cut
        if time.monotonic() < self._end:
            return Cancelled("The caller went away before the answer was ready.")
        return TimedOut(
            f"The answer was not ready within {self._seconds:.3g} s.",
            hint="Ask with fewer queries, give a longer timeout, or start the server with a longer --deadline.",
        )
