"""Answers to what does not depend on the query, kept while they fit: one computation per key, over all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from dualform.query.search.tally import Tally
from dualform.store.ram_budget import RamBudget

Value = TypeVar("Value")
_LOOK = 0.05
"""Seconds between looks whether whoever waits for a value still has to."""
_SMALL = 100
"""Bytes of a value that does not say its size: a number, a text, None."""


class _Held(NamedTuple):
    """So that None is a value."""

    value: Any


class Cache:
    """The values used last, up to a number of bytes: arrays, mappings of arrays, and whatever says its `nbytes`."""

    def __init__(self, limit: int | RamBudget, tally: Tally | None = None) -> None:
        """`limit`: bytes, or the budget that it shares with other caches. `tally` counts what was found and made."""
        self._tally = tally or Tally()
        self._budget = RamBudget(limit, limit // 2) if isinstance(limit, int) else limit
        self._owner = object()
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
                held: _Held | None = self._budget.find(self._owner, key)
                if held is not None:
                    self._tally.add(found=1)
                    found: Value = held.value
                    return found
                made = self._making.get(key)
                if made is None:
                    self._making[key] = made = threading.Event()
                    break
            while not made.wait(None if check is None else _LOOK):
                assert check is not None
                check()
        self._tally.add(made=1)
        try:
            value = make()
            self._budget.keep(self._owner, key, _Held(value), _size(value))
            return value
        finally:
            with self._lock:
                del self._making[key]
            made.set()

    def holds(self, key: Hashable) -> bool:
        """Whether a value is there, or being made."""
        with self._lock:
            return key in self._making or self._budget.find(self._owner, key) is not None

    def clear(self) -> None:
        """Let go of all values; what is being made meanwhile is kept."""
        self._budget.forget(self._owner)

    @property
    def nbytes(self) -> int:
        """Of what is kept."""
        return self._budget.bytes_of(self._owner)


def _size(value: Any) -> int:
    """Bytes."""
    if isinstance(value, Mapping):
        return sum(_size(part) for part in value.values())
    return int(getattr(value, "nbytes", _SMALL))
