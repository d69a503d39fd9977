"""A server that closes: calls that still come are told so, and go elsewhere.

gRPC cuts off what reaches a server while it stops with CANCELLED, which tells nobody to ask again. So a server first
refuses with UNAVAILABLE while calls keep coming, and stops once none does.
"""

from __future__ import annotations

import time

from dualform.errors import DualformError, Unavailable

QUIET_SECONDS = 0.1
"""Once no call has come for so long, a server stops."""
MOST_SECONDS = 1.0
"""Or after so long, however many come."""


class Closing:
    """Lets questions in until the server closes; health is told to the end."""

    def __init__(self) -> None:
        self._closing = False
        self._last = float("-inf")
        """When the last question came, in seconds of time.monotonic()."""
        self.cut_off: DualformError | None = None
        """What ends calls whose callers are still there; None before their grace is over."""

    def close(self) -> None:
        """Refuse what comes from here on; returns once nothing does, or after MOST_SECONDS."""
        self._closing = True
        end = time.monotonic() + MOST_SECONDS
        while (quiet := min(self._last + QUIET_SECONDS, end) - time.monotonic()) > 0:
            time.sleep(quiet)

    def cut(self) -> None:
        """On the loop: calls that are still there are ended now."""
        self.cut_off = Unavailable("The server has closed.")

    def admit(self) -> None:
        """To be called as a question comes. Raises Unavailable once the server closes."""
        self._last = time.monotonic()
        if self._closing:
            raise Unavailable("The server is closing.", hint="Ask another one, or this one once it has started again.")
