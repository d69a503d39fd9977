"""Which slots a memory with a budget keeps: those whose lot lies under a share, which only becomes smaller.

    lot(seed, step, row)  =  (h >> 11) / 2^53,     h = mixed(mixed(mixed(0, seed), step), row)
    mixed(h, x)  =  the finalizer of SplitMix64 on (h XOR x) + 0x9E3779B97F4A7C15, modulo 2^64

All of it is integer arithmetic, so that a lot is the same on every machine, on every rank and after a resumption. The
finalizer is that of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keep: TypeAlias = Literal["samples", "steps"]
KEEPS: tuple[Keep, ...] = ("samples", "steps")
ROWS_OF_A_RANK = 1 << 32
"""The rows of a batch are numbered over all ranks: row b of rank r is r times this many, plus b."""

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Sampling:
    """The rule by which the slots of one run are sampled."""

    keep: Keep
    """What has a lot: each sample of a step, with all of its slots in all layers; or each step."""
    seed: int
    budget: int
    """Bytes that this process may take on disk."""

    def lots(self, step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n], each at least 0 and below 1: the lots of some rows of a step of the training. Rows are those of
        all ranks; slots whose row is not known share the lot of row -1.
        """
        of_step = _mixed(_mixed(np.zeros(1, np.uint64), self.seed), step)
        drawn = of_step if self.keep == "steps" else _mixed(of_step, rows)
        found: NDArray[np.float64] = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.broadcast_to(found, len(rows))

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def _mixed(state: NDArray[np.uint64], number: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[n]. Arrays of unsigned integers wrap around in silence."""
    given = np.asarray(number % (1 << 64), np.uint64) if isinstance(number, int) else number.astype(np.uint64)
    z: NDArray[np.uint64] = (state ^ given) + _STRIDE
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
