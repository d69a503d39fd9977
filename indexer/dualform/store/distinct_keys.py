"""Which keys of a layer were stored before: inputs that repeat, epoch after epoch, are stored once.

Shapes: m rows of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

_MOST_REMEMBERED = 4_000_000
"""Distinct keys remembered in search of repeats (about 0.5 GB): inputs that never repeat must not fill memory."""


class DistinctKeys:
    """Knows the distinct keys of one layer by their digests."""

    def __init__(self) -> None:
        self._row_of_key: dict[bytes, int] = {}
        self._rows = 0

    def rows_of(self, keys: NDArray[Any]) -> tuple[NDArray[np.int64], list[int]]:
        """Which of the layer's stored rows each of the keys [m, …] is, bit for bit, int64[m]; and the places among
        them of those that were not seen before, which are rows of their own from now on.
        """
        digests = [xxhash.xxh3_128_digest(content) for content in _contents(keys)]
        known = self._row_of_key
        of_row, new = [known.get(digest, -1) for digest in digests], list[int]()
        if -1 in of_row:
            for place, digest in enumerate(digests):
                row = of_row[place] = known.get(digest, self._rows)
                if row == self._rows:
                    self._rows += 1
                    new.append(place)
                    if len(known) < _MOST_REMEMBERED:
                        known[digest] = row
        return np.array(of_row, dtype=np.int64), new


def _contents(keys: NDArray[Any]) -> list[memoryview]:
    """Each as it lies, without a copy."""
    if not keys.size:  # of which there is no such view
        return [memoryview(b"")] * len(keys)
    content = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
    size = len(content) // len(keys)
    return [content[start : start + size] for start in range(0, len(content), size)]
