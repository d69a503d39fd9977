"""Spearman's correlation of ranks. Shapes: n values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's: the correlation of ranks, equal values having their mean rank; None where either does not vary."""
    ranks = [mean_ranks(values) for values in (one, other)]
    deviations = [rank - rank.mean() for rank in ranks]
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale else None


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n]: the rank of each value in ascending order, from 1. Equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return ranks
