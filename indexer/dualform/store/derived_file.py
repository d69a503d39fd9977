"""A file of what is derived from committed files: it saves a cold start the work, and is never needed.

    prefix    "dualform", the length of the JSON text (8 bytes, little-endian), XXH3-128 of that text
    text      {"derived": kind and version, "of": digest, "sizes": [bytes…], "checksums": [XXH3-128 of each part…]}
    parts     each from a multiple of 64 on

`of` says what it was derived from, so that a file of anything else is as good as none. It is written whole under
another name and renamed, without an fsync: what a power cut leaves of it does not pass its checksums, and what does not
is made again. Nobody is told where it cannot be written. What a killed process left unfinished goes when the next file
of its folder is written.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.durable_files import block_checksum, checksum, open_regular, remove, rename, write_new
from dualform.store.read_bytes import READ

CODES, SUM = ".codes", ".sum"
"""How the names of such files end: codes of keys, and sums over slots."""
_TEMPORARY = ".tmp"
_PREFIX = struct.Struct("<8sQ16s")
_MAGIC = b"dualform"
_ALIGNED = 64
_MOST_TEXT = 64 << 20
LEAST_BYTES = 4 << 20
"""Of the segments that something is kept of: what smaller ones give is made again within milliseconds."""
ABANDONED_SECONDS = 3600
"""After so long nobody writes an unfinished file any more: the process that did was killed."""
_FREE = 20
"""One part in so many of the disk stays free: a training that records there must not find it full."""


def is_derived(name: str) -> bool:
    """Whether a file of this name is one, finished or not."""
    return name.removesuffix(_TEMPORARY).endswith((CODES, SUM))


def aligned(size: int) -> NDArray[np.uint8]:
    """uint8[size] that begins on a cache line, holding anything."""
    room = np.empty(size + _ALIGNED, np.uint8)
    start = -room.ctypes.data % _ALIGNED
    return room[start : start + size]


@dataclass(frozen=True)
class DerivedFile:
    """One whose prefix and text are sound; each part is held against its checksum when it is read."""

    path: Path
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    checksums: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, kind: str, of: str) -> DerivedFile | None:
        """None where there is no such file, or not of this kind and origin."""
        try:
            with open_regular(path) as file:
                magic, length, digest = _PREFIX.unpack(file.read(_PREFIX.size))
                if magic != _MAGIC or length > _MOST_TEXT:
                    return None
                text, size = file.read(length), os.fstat(file.fileno()).st_size
            if block_checksum(text) != digest:
                return None
            said = json.loads(text)
            if (said["derived"], said["of"]) != (kind, of):
                return None
            sizes, checksums = tuple(map(index, said["sizes"])), tuple(map(str, said["checksums"]))
            starts = tuple(_starts(_PREFIX.size + length, sizes))
            fits = min(sizes) >= 0 and len(sizes) == len(checksums) and starts[-1] + sizes[-1] == size
            return cls(path, starts, sizes, checksums) if fits else None
        except (OSError, struct.error, ValueError, LookupError, TypeError, RecursionError):
            return None

    def read(self, number: int, room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        """One part, in `room` where that is given; None where it is not what was written."""
        size = self.sizes[number]
        part = (aligned(size) if room is None else room)[:size]
        try:
            with open_regular(self.path) as file:
                file.seek(self.starts[number])
                left = part.data
                while left and (got := file.readinto(left)):
                    left = left[got:]
        except OSError:
            return None
        READ.add(size - len(left))
        return part if not left and checksum(part.data) == self.checksums[number] else None


def write_derived(path: Path, kind: str, of: str, parts: Sequence[Sequence[NDArray[Any]]]) -> None:
    """Parts of arrays, C-contiguous, one after the other. Nothing happens where there is no room or no permission."""
    pieces = [[array.reshape(-1).view(np.uint8) for array in part] for part in parts]
    whole = [part[0] if len(part) == 1 else np.concatenate(part) for part in pieces]
    sizes = [len(part) for part in whole]
    said = {"derived": kind, "of": of, "sizes": sizes, "checksums": [checksum(part.data) for part in whole]}
    text = json.dumps(said).encode()
    temporary = path.with_name(path.name + _TEMPORARY)
    _remove_abandoned(path.parent)
    # Whoever else derives the same at this moment writes the same bytes, under the same names.
    with suppress(OSError):
        disk = shutil.disk_usage(path.parent)
        if (disk.free - sum(sizes)) * _FREE < disk.total:
            return
        try:
            content = [memoryview(_PREFIX.pack(_MAGIC, len(text), block_checksum(text)) + text)]
            end = len(content[0])
            for start, array in zip(_starts(end, sizes), whole, strict=True):
                content += [memoryview(bytes(start - end)), array.data]
                end = start + len(array)
            write_new(temporary, content, durable=False)
            rename(temporary, path)
        except OSError:
            remove(temporary)


def _remove_abandoned(folder: Path) -> None:
    """Removes unfinished files that nobody writes any more.

    A process that was asleep for so long finds its file gone, or another's in its place: then it keeps nothing, or what
    does not pass its checksums.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_TEMPORARY) and is_derived(entry.name):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                        remove(Path(entry.path))


def _starts(end: int, sizes: Sequence[int]) -> Iterator[int]:
    """Where each part begins, behind what ends at `end`."""
    room = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    return accumulate(room[:-1], initial=-(-end // _ALIGNED) * _ALIGNED) if sizes else iter(())
