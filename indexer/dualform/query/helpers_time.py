"""What other threads took of the processor for the one that asks: its own clock does not show them."""

from __future__ import annotations

import threading

_taken = threading.local()


def add(seconds: float) -> None:
    """To be called by the thread that asked, once its helper has ended."""
    _taken.seconds = taken() + seconds


def taken() -> float:
    """Seconds of the processor that helpers took for this thread since it began."""
    return float(getattr(_taken, "seconds", 0.0))
