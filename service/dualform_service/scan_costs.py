"""What scans of a kind took the last time, and so which lane the next one takes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from dualform.query import helpers_time

KINDS = 4096
"""That are remembered; of more, those that were asked for the longest ago are forgotten."""
LIGHT_SECONDS = 1.0
"""Most of the processor time of its thread, and of its mask's, that a light scan takes. Time on the clock would make
all scans heavy where heavy ones keep the processor busy."""


class ScanCosts:
    """By kind, though only as a number of it is kept: a mask may be long, and a wrong guess costs no more than time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = OrderedDict[int, float]()

    @contextmanager
    def noted(self, kind: Hashable) -> Iterator[None]:
        """Notes what the scan inside takes of this thread, and of those that evaluate its mask."""
        began = _seconds()
        try:
            yield
        except BaseException:
            # What was cut short tells only how much it takes at least.
            if (seconds := _seconds() - began) > LIGHT_SECONDS:
                self._note(kind, seconds)
            raise
        self._note(kind, _seconds() - began)

    def light(self, kind: Hashable) -> bool | None:
        """Whether the last scan of the kind took little; None of a kind that has had none."""
        with self._lock:
            seconds = self._seconds.get(hash(kind))
        return None if seconds is None else seconds <= LIGHT_SECONDS

    def _note(self, kind: Hashable, seconds: float) -> None:
        number = hash(kind)
        with self._lock:
            self._seconds[number] = seconds
            self._seconds.move_to_end(number)
            if len(self._seconds) > KINDS:
                self._seconds.popitem(last=False)


def _seconds() -> float:
    return time.thread_time() + helpers_time.taken()
