"""Agreement of ranks, and what the chance of a sample leaves open. Shapes: r rows, n columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Doubles = NDArray[np.float64]

_DRAWS = 1000


@dataclass(frozen=True)
class Measured:
    """A mean, and the interval that a bootstrap leaves of it."""

    value: float
    low: float
    """The 2.5th percentile of 1,000 bootstrap draws."""
    high: float
    """The 97.5th."""

    def plain(self) -> list[float]:
        return [self.value, self.low, self.high]


def spearman(ours: Doubles, theirs: Doubles) -> Doubles:
    """float64[r]: Spearman's correlation of each row of one with the same row of the other; ties have the mean of their
    ranks, and a row that is the same throughout correlates with nothing: 0.
    """
    ranks = [rankdata(own, axis=1) for own in (ours, theirs)]
    one, other = (own - own.mean(axis=1, keepdims=True) for own in ranks)
    lengths = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    products: Doubles = (one * other).sum(axis=1)
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def mean_of(values: Doubles, seed: int) -> Measured:
    """The mean of independent values, each of which a draw of the bootstrap takes or leaves (Efron, 1979)."""
    draw = np.random.default_rng(seed)
    means = values[draw.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)
    return Measured(float(values.mean()), *np.percentile(means, [2.5, 97.5]).tolist())
