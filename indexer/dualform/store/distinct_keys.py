"""Which keys of a layer were stored before: inputs that repeat, epoch after epoch, are stored once.

Shapes: m rows of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

_MOST_REMEMBERED = 4_000_000
"""Distinct keys remembered in search of repeats (about 0.1 GB): inputs that never repeat must not fill memory."""
_RECENT = 1 << 17
"""Of which about so many lie in a dictionary, which is quicker, before they are sorted in among the others."""


class DistinctKeys:
    """Knows the distinct keys of one layer by their digests."""

    def __init__(self) -> None:
        self._recent: dict[bytes, int] = {}
        """Digest -> row."""
        self._firsts, self._seconds = np.empty((2, 0), dtype=np.uint64)
        """[R] each: the digests of earlier keys as two numbers, by the first one, ascending: a fifth of what a
        dictionary takes."""
        self._row_of_digest = np.empty(0, dtype=np.int64)
        """[R]"""
        self._rows = 0

    def rows_of(self, keys: NDArray[Any]) -> tuple[NDArray[np.int64], list[int]]:
        """Which of the layer's stored rows each of the keys [m, …] is, bit for bit, int64[m]; and the places among
        them of those that were not seen before, which are rows of their own from now on.
        """
        digests = [xxhash.xxh3_128_digest(content) for content in _contents(keys)]
        of_row, new = self._known(digests), list[int]()
        if -1 in of_row:
            known = self._recent
            for place, digest in enumerate(digests):
                if of_row[place] < 0:
                    row = of_row[place] = known.get(digest, self._rows)
                    if row == self._rows:
                        self._rows += 1
                        new.append(place)
                        if len(known) + len(self._firsts) < _MOST_REMEMBERED:
                            known[digest] = row
            if len(known) >= _RECENT:
                self._sort_in()
        return np.array(of_row, dtype=np.int64), new

    def _known(self, digests: list[bytes]) -> list[int]:
        """The row of each digest; -1 where none is known."""
        known = self._recent
        found = [known.get(digest, -1) for digest in digests]
        if -1 not in found or not len(self._firsts):
            return found
        firsts, seconds = _numbers(digests)
        last = len(self._firsts) - 1
        place = np.searchsorted(self._firsts, firsts)
        at = np.minimum(place, last)
        same = self._firsts[at] == firsts
        # Digests that share their first number follow one another.
        while (behind := same & (self._seconds[at] != seconds)).any():
            place = place + behind
            at = np.minimum(place, last)
            same &= ~behind | ((place <= last) & (self._firsts[at] == firsts))
        earlier = np.where(same, self._row_of_digest[at], -1).tolist()
        return [before if own < 0 else own for own, before in zip(found, earlier, strict=True)]

    def _sort_in(self) -> None:
        """Make the recent ones earlier ones."""
        firsts, seconds = _numbers(list(self._recent))
        rows = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        firsts = np.concatenate([self._firsts, firsts])
        order = np.argsort(firsts, kind="stable")
        self._firsts = firsts[order]
        self._seconds = np.concatenate([self._seconds, seconds])[order]
        self._row_of_digest = np.concatenate([self._row_of_digest, rows])[order]
        self._recent = {}


def _numbers(digests: list[bytes]) -> NDArray[np.uint64]:
    """[2, m]"""
    return np.ascontiguousarray(np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2).T)


def _contents(keys: NDArray[Any]) -> list[memoryview]:
    """Each as it lies, without a copy."""
    if not keys.size:  # of which there is no such view
        return [memoryview(b"")] * len(keys)
    content = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
    size = len(content) // len(keys)
    return [content[start : start + size] for start in range(0, len(content), size)]
