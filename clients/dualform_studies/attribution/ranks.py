"""Agreement of ranks, and what the chance of a sample leaves open. Shapes: r rows, n columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers.rank_correlation import mean_ranks, rank_correlation

Doubles = NDArray[np.float64]

_DRAWS = 1000
_NO_SPREAD = 1e-9


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
    return np.array([rank_correlation(one, other) or 0.0 for one, other in zip(ours, theirs, strict=True)])


def agreement(ours: Doubles, theirs: Doubles, seed: int) -> Measured:
    """The mean of `spearman` over the rows, with the interval of a bootstrap that draws both rows and columns.

    Ranks are those among all columns, and not ranked anew in each draw.
    """
    draw, (rows, columns) = np.random.default_rng(seed), ours.shape
    of_columns = draw.multinomial(columns, np.full(columns, 1 / columns), _DRAWS).astype(np.float64).T / columns
    of_rows = draw.multinomial(rows, np.full(rows, 1 / rows), _DRAWS).astype(np.float64) / rows
    one, other = (_standard(_ranked(own)) for own in (ours, theirs))
    means, squares = ([own @ of_columns for own in pair] for pair in ((one, other), (one**2, other**2)))
    apart = (one * other) @ of_columns - means[0] * means[1]
    spread = np.sqrt(np.maximum((squares[0] - means[0] ** 2) * (squares[1] - means[1] ** 2), 0))
    drawn = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > _NO_SPREAD)
    low, high = np.percentile((of_rows * drawn.T).sum(axis=1), [2.5, 97.5]).tolist()
    return Measured(float(spearman(ours, theirs).mean()), low, high)


def _ranked(values: Doubles) -> Doubles:
    """The ranks of each row."""
    return np.stack([mean_ranks(row) for row in values])


def _standard(ranks: Doubles) -> Doubles:
    """Of mean 0 and, unless all are the same, of deviation 1 in each row."""
    apart = ranks - ranks.mean(axis=1, keepdims=True)
    spread = apart.std(axis=1, keepdims=True)
    found: Doubles = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0)
    return found


def mean_of(values: Doubles, seed: int) -> Measured:
    """The mean of independent values, each of which a draw of the bootstrap takes or leaves (Efron, 1979)."""
    draw = np.random.default_rng(seed)
    means = values[draw.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)
    return Measured(float(values.mean()), *np.percentile(means, [2.5, 97.5]).tolist())
