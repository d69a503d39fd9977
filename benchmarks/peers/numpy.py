"""NumPy: a float32 matrix product, then argpartition or bincount."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data, Groups, Mask
from benchmarks.peers import Slots

FEW = 0.1
"""Share of the slots below which gathering their keys costs less than scoring all."""
AT_ONCE = 64
"""Queries whose scores are held at once: 100 MB at T = 384,000."""


class Numpy:
    name = "NumPy"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._keys = data.keys

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        found: Slots = []
        for start in range(0, len(queries), AT_ONCE):
            found.extend(self._top(queries[start : start + AT_ONCE], k, mask))
        return found

    def _top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        if mask is not None and len(mask.slots) < FEW * len(mask.stays):
            scores = queries @ self._keys[mask.slots].T
            return [mask.slots[best(row, k)] for row in scores]
        # One query is a matrix-vector product, which NumPy does faster from this side.
        scores = (self._keys @ queries[0])[None] if len(queries) == 1 else queries @ self._keys.T
        if mask is not None:
            scores[:, ~mask.stays] = -np.inf
        return [best(row, k) for row in scores]

    def top_of_groups(self, query: NDArray[np.float32], k: int, groups: Groups) -> Slots:
        scores = self._keys @ query
        members = [np.flatnonzero(groups.numbers == group) for group in range(groups.count)]
        return [slots[best(scores[slots], k)] for slots in members]

    def sums(self, queries: NDArray[np.float32], groups: Groups, absolute: bool) -> NDArray[np.float64]:
        found: list[NDArray[np.float64]] = []
        for start in range(0, len(queries), AT_ONCE):
            part = queries[start : start + AT_ONCE]
            scores = (self._keys @ part[0])[None] if len(part) == 1 else part @ self._keys.T
            if absolute:
                np.abs(scores, out=scores)
            found.extend(np.bincount(groups.numbers, row, groups.count).astype(np.float64) for row in scores)
        return np.stack(found)

    def close(self) -> None:
        """Nothing to let go of."""


def best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The k best of float32[b], best first."""
    top = np.argpartition(scores, len(scores) - k)[-k:] if k < len(scores) else np.arange(len(scores))
    return top[np.argsort(-scores[top], kind="stable")]
