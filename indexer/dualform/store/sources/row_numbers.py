"""Keys stored as row numbers: those of embeddings, and of bags of words with counts.

Key source "row counts": numbers of rows with a weight each, for keys that count rows, as those of bags of words do.

Shapes: n keys of at most N members each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.segment import MatrixForm, npy
from dualform.store.sources.key_format import DecodedRows, Geometry, KeyFormat, KeySource, StoredRows, described


class RowNumbers(KeyFormat, source="row numbers"):
    """Handed over as integers[n] from 0 to d_in - 1, stored as uint32[n]."""

    multiplied = False

    def __init__(self, d_in: int, geometry: Geometry) -> None:
        super().__init__(d_in, geometry)
        if d_in > 2**32:
            raise ValueError(f"it has {d_in} rows, more than 32 bits can number.")

    @property
    def numbers_a_row(self) -> int:
        """A question reads what the rows say, and makes no key of it."""
        return self.per_row

    @property
    def most_rows(self) -> int | None:
        return self.d_in

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return (npy("<u4"),)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.uint32]:
        if keys.dtype.kind not in "iu" or keys.ndim != 1:
            raise ValueError(f"its row numbers are {described(keys)}, and must be integers[n].")
        if len(keys) and not 0 <= keys.min() <= keys.max() < self.d_in:
            raise ValueError(f"its row numbers are {keys.min()} to {keys.max()}, but it has only {self.d_in} rows.")
        return keys.astype("<u4")

    def source(self, stored: StoredRows) -> KeySource:
        return DecodedRows(stored, stored.first_row, self.d_in, lambda numbers: one_hot(numbers, self.d_in))


def one_hot(numbers: NDArray[np.uint32], width: int) -> NDArray[np.float32]:
    """float32[n, width]: a one in the column of each number."""
    keys = np.zeros((len(numbers), width), dtype=np.float32)
    keys[np.arange(len(numbers)), numbers] = 1
    return keys


MOST_MEMBERS = 1 << 20
_BITS = 32


class RowCounts(KeyFormat, source="row counts"):
    """Handed over and stored as 64 bits a member, [n, N]: the lower half is the number of a row, from 0 to d_in - 1, or
    d_in where there is no member; the upper half the bits of its float32 weight.

    A file has members for the longest of its keys, up to the next power of two: longer keys begin another file.
    """

    multiplied = False

    def __init__(self, d_in: int, geometry: Geometry) -> None:
        super().__init__(d_in, geometry)
        if d_in >= 2**_BITS:
            raise ValueError(f"it has {d_in} rows, more than 32 bits can number.")

    @property
    def numbers_a_row(self) -> int:
        """A question reads what the rows say, and makes no key of it."""
        return self.per_row

    @property
    def forms(self) -> Sequence[MatrixForm]:
        counts = (1 << power for power in range(MOST_MEMBERS.bit_length()))
        return [MatrixForm(f"{count}.npy", np.dtype("<u8"), (count,)) for count in counts]

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.uint64]:
        if keys.dtype not in (np.int64, np.uint64) or keys.ndim != 2 or not 0 < keys.shape[1] <= MOST_MEMBERS:
            raise ValueError(f"its members are {described(keys)}, and must be 64 bits [n, at most {MOST_MEMBERS}].")
        members = np.ascontiguousarray(keys).view("<u8")
        numbers, _ = unpacked(members)
        if numbers.size and numbers.max() > self.d_in:
            raise ValueError(f"a member is row {numbers.max()}, but it has only {self.d_in} rows.")
        return members

    def encoded(self, keys: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        numbers, _ = unpacked(keys)
        longest = int(np.flatnonzero((numbers < self.d_in).any(axis=0)).max(initial=0)) + 1
        if longest > form.width:
            return None
        rows = np.full((len(keys), form.width), self.d_in, dtype="<u8")
        rows[:, :longest] = keys[:, :longest]
        return rows

    def source(self, stored: StoredRows) -> KeySource:
        return DecodedRows(stored, stored.first_row, self.d_in, lambda members: counted(*unpacked(members), self.d_in))


def unpacked(members: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The numbers and weights of members of 64 bits, [n, N] each."""
    halves = np.ascontiguousarray(members).view("<u4").reshape(*members.shape, 2)
    return halves[..., 0].astype(np.int64), np.ascontiguousarray(halves[..., 1]).view("<f4")


def counted(numbers: NDArray[np.int64], weights: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """float32[n, width]: the weights of each key's members, added up by number; those from `width` on are none."""
    keys = np.zeros((len(numbers), width), dtype=np.float32)
    key, place = np.nonzero(numbers < width)
    np.add.at(keys, (key, numbers[key, place]), weights[key, place])
    return keys
