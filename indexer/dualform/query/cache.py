"""Answers to what does not depend on the query, kept while they fit: one computation per key, over all threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")
_LOOK = 0.05
"""Seconds between looks whether whoever waits for a value still has to."""
_SMALL = 100
"""Bytes of a value that does not say its size: a number, a text, None."""


class Cache:
    """The values used last, up to a number of bytes: arrays, mappings of arrays, and whatever says its `nbytes`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes."""
        self._bytes = 0
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value], check: Callable[[], None] | None = None) -> Value:
        """The value of `key`, made by `make` where it is not there; other threads asking for it meanwhile wait,
        each until its own `check` raises something.

        Where `make` raises, its own caller gets the error and one of the waiting threads tries again: the asker that
        went away must not cancel the others.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    found: Value = self._values[key]
                    return found
                made = self._making.get(key)
                if made is None:
                    self._making[key] = made = threading.Event()
                    break
            while not made.wait(None if check is None else _LOOK):
                assert check is not None
                check()
        try:
            value = make()
            self._keep(key, value)
            return value
        finally:
            with self._lock:
                del self._making[key]
            made.set()

    def clear(self) -> None:
        """Let go of all values; what is being made meanwhile is kept."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _keep(self, key: Hashable, value: Any) -> None:
        size = _size(value)
        if size > self.limit // 2:
            return  # it would push out everything else
        with self._lock:
            self._values[key] = value
            self._bytes += size
            while self._bytes > self.limit:
                _, dropped = self._values.popitem(last=False)
                self._bytes -= _size(dropped)


def _size(value: Any) -> int:
    """Bytes."""
    if isinstance(value, Mapping):
        return sum(_size(part) for part in value.values())
    return int(getattr(value, "nbytes", _SMALL))
