"""How much memory there is to use: the machine's, or what the process's control groups may take of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
