"""Arrays made of the slots of a layer, sums over them and groups of them, kept beside its keys.

    layers/LAYER/DIGEST.sum    a derived file: the arrays of one sum, or of one grouping

The digest is of everything that they were made from: the checksums of the rows, the slots, and what each counts. So a
file is found by whoever would make the same arrays, and by nobody else; a mask is whatever slots it leaves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from dualform.store import derived_file
from dualform.store.derived_file import SUM, DerivedFile, write_derived
from dualform.store.rows import Rows
from dualform.store.snapshot import Snapshot

MOST_BYTES = 64 << 20
"""Of all files of a layer; a single one takes at most a quarter. The oldest go."""


@dataclass(frozen=True)
class StoredArrays:
    path: Path
    kind: str
    """With its version: to be counted up when the same slots are added up in another order."""

    @classmethod
    def of(
        cls, memory: Snapshot, kind: str, rows: Sequence[Rows], numbers: Sequence[NDArray[Any] | None]
    ) -> StoredArrays | None:
        """The place of what is made of some rows, which ones and how often as `numbers` say.

        None where rows are not in files of this memory's folder alone, or too few to be worth it.
        """
        digest, size, folder = xxhash.xxh3_128(kind.encode()), 0, None
        for own in rows:
            digest.update(f"{own.rows}x{own.width}:".encode())
            for source in own.sources:
                segment = source.segment
                if segment is None or not segment.path.is_relative_to(memory.path):
                    return None
                size += segment.size
                folder = folder or segment.path.parent
                # Which columns of the file are read, wherever the folder is.
                columns = str(source.identity).replace(str(segment.path), "")
                digest.update(f"{segment.path.name} {columns} {source.first_row} {source.rows};".encode())
                digest.update(segment.checksums)
        for array in (*numbers, *(own.order for own in rows)):
            digest.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(folder / f"{digest.hexdigest()}{SUM}", kind) if folder and size >= derived_file.LEAST_BYTES else None

    def read(self, *forms: tuple[DTypeLike, tuple[int, ...]]) -> list[NDArray[Any]] | None:
        """The arrays, of these types and shapes, (-1,) being any length; None where they are not there, or altered."""
        file = DerivedFile.open(self.path, self.kind, self.path.stem)
        if file is None or len(file.sizes) != len(forms):
            return None
        found = list[NDArray[Any]]()
        for number, (dtype, shape) in enumerate(forms):
            part = file.read(number)
            size = np.dtype(dtype).itemsize
            if part is None or (len(part) % size if shape == (-1,) else len(part) != size * int(np.prod(shape))):
                return None
            found.append(part.view(dtype).reshape(shape))
        with suppress(OSError):
            os.utime(self.path)
        return found

    def write(self, *arrays: NDArray[Any]) -> None:
        size = sum(array.nbytes for array in arrays)
        if 4 * size > MOST_BYTES:
            return
        self._make_room(size)
        write_derived(self.path, self.kind, self.path.stem, [(np.ascontiguousarray(array),) for array in arrays])

    def _make_room(self, size: int) -> None:
        with suppress(OSError):
            held = [(path.stat(), path) for path in self.path.parent.glob(f"*{SUM}")]
            held.sort(key=lambda own: own[0].st_mtime_ns)
            total = sum(stat.st_size for stat, _ in held)
            for stat, path in held:
                if total + size > MOST_BYTES:
                    path.unlink(missing_ok=True)
                    total -= stat.st_size
