"""torch: a float32 matrix product, then topk or index_add."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.data import Data, Groups, Mask
from benchmarks.peers import Slots

FEW = 0.1
"""Share of the slots below which gathering their keys costs less than scoring all."""
AT_ONCE = 64
"""Queries whose scores are held at once: 100 MB at T = 384,000."""


class Torch:
    name = "torch"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._keys = torch.from_numpy(data.keys)
        self._masks: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._groups: dict[tuple[str, ...], torch.Tensor] = {}

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        found: Slots = []
        for start in range(0, len(queries), AT_ONCE):
            found.extend(self._top(torch.from_numpy(queries[start : start + AT_ONCE]), k, mask))
        return found

    def _top(self, queries: torch.Tensor, k: int, mask: Mask | None) -> Slots:
        if mask is None:
            return list((queries @ self._keys.T).topk(k).indices.numpy())
        removed, slots = self._mask(mask)
        if len(slots) < FEW * len(removed):
            scores = queries @ self._keys[slots].T
            return list(slots[scores.topk(min(k, len(slots))).indices].numpy())
        scores = (queries @ self._keys.T).masked_fill_(removed, -torch.inf)
        return list(scores.topk(k).indices.numpy())

    def top_of_groups(self, query: NDArray[np.float32], k: int, groups: Groups) -> Slots:
        scores = self._keys @ torch.from_numpy(query)
        numbers = self._numbers(groups)
        found = []
        for group in range(groups.count):
            slots = (numbers == group).nonzero()[:, 0]
            found.append(slots[scores[slots].topk(min(k, len(slots))).indices].numpy())
        return found

    def sums(self, queries: NDArray[np.float32], groups: Groups, absolute: bool) -> NDArray[np.float64]:
        numbers, found = self._numbers(groups), []
        for start in range(0, len(queries), AT_ONCE):
            scores = torch.from_numpy(queries[start : start + AT_ONCE]) @ self._keys.T
            if absolute:
                scores.abs_()
            zeros = torch.zeros((len(scores), groups.count), dtype=torch.float64)
            found.append(zeros.index_add_(1, numbers, scores.double()).numpy())
        return np.concatenate(found)

    def _mask(self, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
        if mask.where not in self._masks:
            self._masks[mask.where] = (torch.from_numpy(~mask.stays), torch.from_numpy(mask.slots))
        return self._masks[mask.where]

    def _numbers(self, groups: Groups) -> torch.Tensor:
        return self._groups.setdefault(groups.by, torch.from_numpy(groups.numbers))

    def close(self) -> None:
        """Nothing to let go of."""
