"""Codes and norms of a key source, kept beside the segment that its keys come from.

Shapes: R rows of the source, G groups of kernels.ROWS rows, g of them in a block, W words of four dimensions.

    KEYS.codes    a derived file: the norms float64[R], then block after block uint8[g, W, ROWS, 4] with its numbers
                  float32[4, g * ROWS]

A block is all that a screen needs of its rows, so that the first question of a process screens each block where it was
read, and holds none.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.errors import Damaged
from dualform.query.search.codes import Codes
from dualform.store import derived_file
from dualform.store.derived_file import CODES, SUM, DerivedFile, write_derived
from dualform.store.durable_files import checksum, remove
from dualform.store.snapshot import Snapshot
from dualform.store.sources.key_source import KeySource

KIND = "codes 1"
_BLOCK_BYTES = 2 << 20
_ROUNDED = 1 + 1e-9
"""Lengths are rounded up as the codes are made; those that they are held against are rounded as they come."""


@dataclass(frozen=True)
class StoredCodes:
    file: DerivedFile
    rows: int
    width: int

    @classmethod
    def open(cls, source: KeySource) -> StoredCodes | None:
        """None where there are none, or those of something else."""
        place = _place(source)
        file = None if place is None else DerivedFile.open(place, KIND, _origin(source))
        return cls(file, source.rows, source.width) if file and file.sizes == _sizes(source) else None

    def norms(self) -> NDArray[np.float64] | None:
        """float64[R]; None where the file was altered, as of the other methods, and where one is not finite: those of
        keys that hold NaN are measured again.
        """
        part = self.file.read(0)
        found = None if part is None else part.view(np.float64)
        return None if found is None or not np.isfinite(found).all() else found

    @property
    def blocks(self) -> int:
        return len(self.file.sizes) - 1

    @property
    def block_bytes(self) -> int:
        """Of the largest block."""
        return max(self.file.sizes[1:])

    def groups(self, block: int) -> tuple[int, int]:
        """The first group of a block, and the one past its last."""
        size = block_groups(self.width)
        return block * size, min((block + 1) * size, -(-self.rows // kernels.ROWS))

    def block(self, number: int, room: NDArray[np.uint8] | None = None) -> Codes | None:
        """The codes of a block's rows; they lie in `room` where that is given."""
        part = self.file.read(number + 1, room)
        if part is None:
            return None
        first, last = self.groups(number)
        words, padded = -(-self.width // 4), (last - first) * kernels.ROWS
        codes = part[: padded * words * 4].reshape(last - first, words, kernels.ROWS, 4)
        numbers = part[codes.size :].view(np.float32).reshape(4, padded)
        return Codes(codes, numbers, min(padded, self.rows - first * kernels.ROWS))

    def whole(self) -> Codes | None:
        """All codes."""
        made, room = Codes.room(self.rows, self.width), np.empty(self.block_bytes, np.uint8)
        for number in range(self.blocks):
            block, (first, last) = self.block(number, room), self.groups(number)
            if block is None:
                return None
            made.codes[first:last] = block.codes
            made.numbers[:, first * kernels.ROWS : last * kernels.ROWS] = block.numbers
        return made


def write_codes(source: KeySource, codes: Codes, norms: NDArray[np.float64]) -> None:
    """Keep what was made of a source, where that is worth a file."""
    if (place := _place(source)) is None:
        return
    size = block_groups(source.width)
    blocks = [
        (
            codes.codes[first : first + size],
            np.ascontiguousarray(codes.numbers[:, first * kernels.ROWS : (first + size) * kernels.ROWS]),
        )
        for first in range(0, len(codes.codes), size)
    ]
    write_derived(place, KIND, _origin(source), [(np.ascontiguousarray(norms),), *blocks])


def _sizes(source: KeySource) -> tuple[int, ...]:
    """Bytes of the parts of its file."""
    groups, size = -(-source.rows // kernels.ROWS), block_groups(source.width)
    blocks = (min(size, groups - first) * kernels.ROWS for first in range(0, groups, size))
    return 8 * source.rows, *(Codes.bytes_of(rows, source.width) for rows in blocks)


def check_derived(memory: Snapshot) -> list[str]:
    """Removes files of codes that do not fit their keys; returns a sentence each. Kept sums are removed unread: which
    slots they are of cannot be told from the file. All of them are made again when they are needed.
    """
    problems, folders = list[str](), set[Path]()
    for source in (source for own in memory.sources.values() for source in own):
        if source.segment is not None:
            folders.add(source.segment.path.parent)
        place = _place(source)
        with suppress(Damaged):  # of the keys: that is for `check_memory` to say
            if place is not None and place.exists() and not _fits(source):
                problems.append(f"{place} did not fit its keys.{_removed(place)}")
    sums = sorted(file for folder in folders for file in folder.glob(f"*{SUM}"))
    return problems + [f"{file} cannot be checked.{failed}" for file in sums if (failed := _removed(file, ""))]


def _removed(file: Path, done: str = " It was removed, and is made again when needed.") -> str:
    try:
        remove(file)
    except OSError as error:
        return f" Remove it: {error.strerror}."
    return done


def _fits(source: KeySource) -> bool:
    """Whether the codes beside a source exclude nothing that its keys do not, and the norms are those of its keys."""
    stored, source = StoredCodes.open(source), source.passing()
    if stored is None:
        return False
    lengths = stored.norms()
    for number in range(stored.blocks):
        block, start = stored.block(number), stored.groups(number)[0] * kernels.ROWS
        if block is None:
            return False
        keys = source.read(start, start + block.rows).astype(np.float64)
        codes = block.codes.swapaxes(1, 2).reshape(-1, 4 * block.codes.shape[1])[: block.rows, : source.width]
        scale, low, left, coded = block.numbers[:, : block.rows, None].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            parts = scale * codes
            fits = np.linalg.norm(keys - parts - low, axis=1) <= left[:, 0] * _ROUNDED
            fits &= np.linalg.norm(parts, axis=1) <= coded[:, 0] * _ROUNDED
            own = np.linalg.norm(keys, axis=1)
        if not (fits | (left[:, 0] == np.inf)).all():
            return False
        if lengths is not None and not np.allclose(lengths[start : start + block.rows], own, rtol=1e-12, atol=0):
            return False
    return True


def block_groups(width: int) -> int:
    """g, of keys of a width."""
    return max(1, _BLOCK_BYTES // Codes.bytes_of(kernels.ROWS, width))


def _place(source: KeySource) -> Path | None:
    """None for keys of which a segment is but a part, as those of a view, and for those that are not worth a file."""
    segment = source.segment
    if segment is None or source.identity != segment.identity or not source.width:
        return None
    worth = segment.size >= derived_file.LEAST_BYTES and Codes.bytes_of(source.rows, source.width) <= segment.size
    return segment.path.with_name(f"{segment.path.name}{CODES}") if worth else None


def _origin(source: KeySource) -> str:
    """What the codes are of: the content of a segment, the form of its keys, and how the codes lie."""
    assert source.segment is not None
    return (
        f"{checksum(source.segment.checksums)} {source.rows}x{source.width} {kernels.ROWS} {block_groups(source.width)}"
    )
