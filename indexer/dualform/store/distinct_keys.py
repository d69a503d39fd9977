"""Which keys of a layer were stored before: inputs that repeat, epoch after epoch, are stored once.

Shapes: m rows of a batch, each standing for P entries.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

_MOST_REMEMBERED = 4_000_000
"""Distinct keys remembered in search of repeats (about 0.5 GB): inputs that never repeat must not fill memory."""


class DistinctKeys:
    """The rows of one layer's keys, and the row of each of its entries."""

    def __init__(self, per_row: int) -> None:
        """`per_row`: P."""
        self._within = np.arange(per_row)
        self._row_of_key: dict[bytes, int] = {}
        self._rows = 0
        self._of_entries: list[NDArray[np.int64]] = []

    def new_among(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Those of the keys [m, …] that were not seen before, bit for bit; notes the row of every entry's key."""
        new: list[int] = []
        of_row = []
        for place, digest in enumerate(map(xxhash.xxh3_128_digest, _contents(keys))):
            row = self._row_of_key.get(digest)
            if row is None:
                row = self._rows
                self._rows += 1
                new.append(place)
                if len(self._row_of_key) < _MOST_REMEMBERED:
                    self._row_of_key[digest] = row
            of_row.append(row)
        rows = np.array(of_row, dtype=np.int64)
        self._of_entries.append((rows[:, None] * len(self._within) + self._within).reshape(-1))
        return keys if len(new) == len(keys) else keys[new]

    def take(self) -> NDArray[np.int64] | None:
        """The key row of each entry since the last call; None where there are none."""
        if not self._of_entries:
            return None
        rows, self._of_entries = np.concatenate(self._of_entries), []
        return rows


def _contents(keys: NDArray[Any]) -> list[bytes]:
    """As bytes, all at once: one row of an array after the other holds the training up for longer."""
    flat = np.ascontiguousarray(keys).reshape(len(keys), -1)
    each = flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize))).reshape(-1)
    return cast(list[bytes], each.tolist())
