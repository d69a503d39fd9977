"""How much RAM there is, how much may be used, and byte counts as people write them."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any

from dualform.errors import BadInput, Overloaded

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def readable(count: float) -> str:
    """A number of bytes, for people."""
    unit, *larger = ("bytes", "kB", "MB", "GB", "TB")
    while count >= 1000 and larger:
        count, unit, *larger = (count / 1000, *larger)
    return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}"


def bytes_of(said: Any, name: str = "budget") -> int:
    """Of an integer, or of a text such as "200 GB". Raises BadInput, by the argument's name, for anything else."""
    if isinstance(said, Integral) and not isinstance(said, bool) and int(said) > 0:
        return int(said)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", said) if isinstance(said, str) else None
    size = _UNITS.get(found[2].upper()) if found else None
    if found is None or size is None or not (whole := math.floor(float(found[1]) * size)):
        raise BadInput(
            f"{name} must be a number of bytes, or a text with a unit, not {said!r}.",
            hint=f'For example {name}="200 GB" or {name}=200_000_000_000.',
            field=name,
        )
    return whole


_UNKNOWN = 8 << 30
"""Bytes: what people's machines have at least."""
_V2, _V1 = "memory.max", "memory.limit_in_bytes"


def memory_bytes(root: Path = Path("/")) -> int:
    """What the machine has, or what its container or service may use; _UNKNOWN where the system does not say, as
    Windows. `root`: where /proc and /sys are.
    """
    memory = _UNKNOWN
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((memory, *_limits(root)))


def _limits(root: Path) -> Iterator[int]:
    """Of the process's control group and of all above it, in either version; a group without one says "max", or more
    than any machine has."""
    groups = root / "sys/fs/cgroup"
    # A container sees its own group as the root, whatever its path says.
    places = {groups / _V2, groups / "memory" / _V1}
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top, file = (groups / "memory", _V1) if controllers else (groups, _V2)
            own = top / path.lstrip("/")
            places |= {place / file for place in (own, *own.parents) if place.is_relative_to(top)}
    for place in places:
        with suppress(OSError, ValueError):
            yield int(place.read_text())


_ACCOUNTED = 0.8
"""Of a bound, what is counted: the rest is the allocator's, which returns pages late."""
_LOOK = 0.05
"""Seconds between looks whether whoever waits for room still has to."""
_PATIENCE = 1.0
"""Seconds without room after which the first in line is refused, though nobody else holds a claim."""

CHILDREN = set[int]()
"""Numbers of the processes that this one has begun and whose memory counts as its own."""


class RamBudget:
    """What several caches keep, together at most so many bytes. Safe to use from several threads.

    Each value is kept under its owner, which is whatever object tells one cache's keys from another's. What was used
    longest ago goes first, whoever its owner is, for anything kept here can be made or read again.
    """

    def __init__(self, most_bytes: int, largest: int | None = None) -> None:
        """`largest`: bytes of a single value, beyond which it is not kept; all of them where it is None."""
        self.most_bytes = self._given = most_bytes
        self.largest = most_bytes if largest is None else largest
        self.kept_bytes = 0
        """What is kept at this moment."""
        self._claimed = self._taken = 0
        self._resident: Callable[[], int] | None = None
        self._uncounted = 0
        """What the process holds beyond all that is counted and left to the allocator: columns that were read, commits
        of a training that goes on, what libraries keep."""
        self._short_since = float("inf")
        """When the first in line last began to find no room, though nobody else held a claim."""
        self._line = deque[object]()
        """Whoever waits to claim, in the order they came."""
        self._kept = OrderedDict[tuple[object, Hashable], tuple[Any, int]]()
        self._changed = threading.Condition()

    @classmethod
    def shared(cls, most_bytes: int) -> RamBudget:
        """One that all caches of an engine draw on: a single value takes a quarter at most."""
        return cls(most_bytes, most_bytes // 4)

    @property
    def given(self) -> int:
        """Bytes of the whole bound, what is not counted here included."""
        return self._given

    def leave(self, taken: int, least: int, resident: Callable[[], int] | None = None) -> None:
        """Count with what is `taken` already, by each memory as it is opened, and with what the allocator keeps for
        itself. `resident`: what the process holds, where all of it is to stay within the bound.

        Raises BadInput where less than `least` is left.
        """
        self._resident = resident or self._resident
        self._taken += max(0, taken)  # a process may hold less than before, as others let go meanwhile
        left = int((self._given - self._taken) * _ACCOUNTED)
        if left < least:
            raise BadInput(
                f"ram={readable(self._given)} is too small: opening the memory takes {readable(self._taken)}, and a "
                f"question up to {readable(least)}.",
                hint=f'Pass at least ram="{readable(1.01 * (self._taken + least / _ACCOUNTED))}".',
                field="ram",
            )
        with self._changed:
            self.most_bytes, self.largest = left, left // 4
            self._make_room()

    def find(self, owner: object, key: Hashable) -> Any:
        """The value, which is then the one used last; None where it is not kept."""
        with self._changed:
            if (owner, key) not in self._kept:
                return None
            self._kept.move_to_end((owner, key))
            return self._kept[owner, key][0]

    def keep(self, owner: object, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of so many bytes while there is room, in the place of one of that key."""
        if size > self.largest:
            return
        with self._changed:
            self._drop(owner, key)
            self._kept[owner, key] = value, size
            self.kept_bytes += size
            self._make_room()

    def forget(self, owner: object) -> None:
        """Let go of all that an owner keeps."""
        with self._changed:
            for own, key in [place for place in self._kept if place[0] is owner]:
                self._drop(own, key)

    def bytes_of(self, owner: object) -> int:
        """What an owner keeps."""
        with self._changed:
            return sum(size for (own, _), (_, size) in self._kept.items() if own is owner)

    @contextmanager
    def claimed(self, size: int, check: Callable[[], None], instead: str = "") -> Iterator[None]:
        """So many bytes for the work inside, for which caches let go of what they keep, and for which it waits where
        others work or came first. Whoever holds a claim must not ask for another: two that wait for each other would do
        so for ever.

        Raises BadInput where there will never be so much, Overloaded where what the process holds leaves too little,
        and what `check` raises while it waits. `instead`: what could be asked for that needs less, for the hint.
        """
        if size > self.most_bytes:
            raise BadInput(
                f"This query needs about {readable(size)} of RAM; the limit is {readable(self.most_bytes)}.",
                hint=f"{instead}, or open the memory with more RAM." if instead else "Open the memory with more RAM.",
                field="ram",
            )
        with self._changed:
            place = object()
            self._line.append(place)
            try:
                # A small claim that fits waits behind a large one that does not yet, which would else wait for ever.
                while self._line[0] is not place or not self._fits(size):
                    self._changed.wait(_LOOK)
                    check()
                self._claimed += size
            finally:
                self._line.remove(place)
                self._changed.notify_all()
            self._make_room()
        try:
            yield
        finally:
            with self._changed:
                self._claimed -= size
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        """Whether the first in line may claim so much. Raises Overloaded where nobody could give way any more."""
        if self._claimed + size <= self._room():
            self._short_since = float("inf")
            return True
        if not self._claimed:
            for place in list(self._kept):  # which may take more than was said
                self._drop(*place)
            now = time.monotonic()
            self._short_since = min(self._short_since, now)
            if now - self._short_since > _PATIENCE:
                raise Overloaded(
                    f"this question needs about {readable(size)} of RAM; {readable(max(0, self._room()))} of the limit "
                    "are free.",
                    hint="Ask again in a moment, ask for less, or raise the RAM limit.",
                    field="ram",
                )
        return False

    def _room(self) -> int:
        """Bytes for what is kept and claimed, beside all else that the process holds."""
        held = 0 if self._resident is None else self._resident()
        if held:
            counted = self._taken + self.kept_bytes + self._claimed
            # A quarter of what is left to the allocator is for what it takes until somebody looks again.
            slack = 3 * (self._given - self._taken - self.most_bytes) // 4
            beyond = max(0, held - counted - slack)
            # Of a claim only a part is in use, and then less is seen than there is.
            self._uncounted = max(beyond, self._uncounted) if self._claimed else beyond
        return self.most_bytes - self._uncounted

    def _make_room(self) -> None:
        while self._kept and self.kept_bytes + self._claimed > self.most_bytes - self._uncounted:
            self._drop(*next(iter(self._kept)))

    def _drop(self, owner: object, key: Hashable) -> None:
        _, size = self._kept.pop((owner, key), (None, 0))
        self.kept_bytes -= size


def anonymous_bytes() -> int:
    """What this process holds in memory that no file backs; 0 where the system does not say."""
    return _status("RssAnon:")


def resident_bytes() -> int:
    """What this process holds in memory and those in CHILDREN do, the pages of libraries included; 0 where the system
    does not say."""
    return _status("VmRSS:") + sum(_status("VmRSS:", str(number)) for number in list(CHILDREN))


def _status(field: str, process: str = "self") -> int:
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
    return 0
