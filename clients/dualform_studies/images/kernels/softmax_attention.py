"""Softmax attention over all slots of a layer, for many queries and several temperatures in one pass over its memory.

    sum_t p_t e_t        p_t  =  exp(x_t . q / temperature)  /  sum_s exp(x_s . q / temperature)

Scores and products are float32: fast, good enough to count which class is the greatest, and held against the exact
answer of `memory.output(…, kernel="softmax")` where they are used. Shapes: m queries, T slots, b slots of a block,
d_in, d_out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.recorded_memory import layer_info, open_recorded

_BLOCK = 2048
"""Slots whose scores are held at once."""
_MEMORY = "1.5 GB"
"""Distinct images that come again and again fit, and nothing else is read twice in a pass."""


def open_for_passes(path: Path) -> Engine:
    """The memory in a folder, of which little is held between two reads."""
    return open_recorded(path, "numpy", _MEMORY)


@dataclass(frozen=True)
class Share:
    """Some of the queries, and the temperature that they attend with."""

    queries: slice
    temperature: float


@dataclass(frozen=True, eq=False)
class Attended:
    sums: NDArray[np.float32]
    """float32[m, d_out]: sum_t p_t e_t."""
    effective_slots: NDArray[np.float64]
    """float64[m]: 1 / sum_t p_t^2."""


def attend(memory: Engine, layer: str, queries: NDArray[np.float32], shares: Sequence[Share]) -> list[Attended]:
    """What each share of float32[m, d_in] attends to at the end of the training; shares may have queries in common."""
    info = layer_info(memory, layer)
    slots = np.arange(info.slots)
    coefficients = memory.coefficients(layer, slots).astype(np.float32)
    running = [_Running(queries[share.queries], share.temperature, info.d_out) for share in shares]
    for start in range(0, len(slots), _BLOCK):
        block = slots[start : start + _BLOCK]
        scores = queries @ memory.keys(layer, block).T
        values = memory.values(layer, block) * coefficients[block, None]
        for share, own in zip(shares, running, strict=True):
            own.add(scores[share.queries], values)
    return [own.attended() for own in running]


class _Running:
    """The sums over the slots that have come so far, relative to each query's greatest score."""

    def __init__(self, queries: NDArray[np.float32], temperature: float, d_out: int) -> None:
        self._temperature = np.float32(temperature)
        self._greatest = np.full(len(queries), -np.inf, dtype=np.float32)
        self._totals, self._squares = np.zeros((2, len(queries)))
        self._sums = np.zeros((len(queries), d_out))

    def add(self, scores: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """One block: scores float32[m, b], values float32[b, d_out]."""
        greatest = np.maximum(self._greatest, scores.max(axis=1))
        with np.errstate(under="ignore"):  # what is far from the greatest counts for nothing
            weights = scores - greatest[:, None]
            weights /= self._temperature
            np.exp(weights, out=weights)
            fade = np.exp((self._greatest - greatest) / self._temperature).astype(np.float64)
        self._greatest = greatest
        self._totals = self._totals * fade + weights.sum(axis=1, dtype=np.float64)
        self._squares = self._squares * fade**2 + np.einsum("mb,mb->m", weights, weights)
        self._sums *= fade[:, None]
        self._sums += weights @ values

    def attended(self) -> Attended:
        return Attended((self._sums / self._totals[:, None]).astype(np.float32), self._totals**2 / self._squares)
