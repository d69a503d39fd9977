"""How many questions a second a caller may ask."""

from __future__ import annotations

import time
from collections import OrderedDict

from dualform.errors import Overloaded

CALLERS = 4096
"""That are remembered."""


class Rates:
    """So many a second for each caller, a second's worth of them at once. On the loop."""

    def __init__(self, per_second: float | None) -> None:
        """None: as many as come."""
        self._per_second = per_second
        self._most = max(1.0, per_second or 0.0)
        self._left = OrderedDict[str, tuple[float, float]]()
        """Questions that a caller may ask at once, and when that was so, in seconds of time.monotonic()."""

    def take(self, caller: str) -> None:
        """One question. Raises Overloaded where it comes too soon, and says when the next one may come."""
        if self._per_second is None:
            return
        now = time.monotonic()
        left, then = self._left.pop(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._per_second)
        allowed = left >= 1.0
        self._left[caller] = (left - 1.0 if allowed else left, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            raise Overloaded(
                f"A caller may ask {self._per_second:g} questions a second.",
                hint=f"Ask again in {(1.0 - left) / self._per_second:.2g} s.",
            )
