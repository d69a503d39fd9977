"""How well scores predict retrainings and find wrong labels. Shapes: k retrainings, t tests, n samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers.rank_correlation import mean_ranks

Doubles = NDArray[np.float64]

_DRAWS = 1000


class Measured(NamedTuple):
    """A value, and the 95 % interval of a bootstrap."""

    value: float
    low: float
    high: float


def lds(scores: Doubles, sets: NDArray[np.bool_], losses: Doubles, seed: int) -> Measured:
    """The linear datamodeling score (Park et al., 2023): Spearman's correlation, over retrainings, of the summed scores
    of the samples that each left out with the loss of a test after it; the mean over tests.

    The bootstrap draws tests and retrainings; ranks are those among all retrainings. A row without variation
    correlates with nothing: 0. `scores`: float64[t, n]; `sets`: bool[k, n]; `losses`: float64[k, t].
    """
    predicted, actual = _standard(scores @ sets.T.astype(np.float64)), _standard(losses.T)
    tests, count = predicted.shape
    draw = np.random.default_rng(seed)
    columns = draw.multinomial(count, np.full(count, 1 / count), _DRAWS).T / count
    rows = draw.multinomial(tests, np.full(tests, 1 / tests), _DRAWS) / tests
    means = predicted @ columns, actual @ columns
    spreads = [own**2 @ columns - mean**2 for own, mean in zip((predicted, actual), means, strict=True)]
    covariance = (predicted * actual) @ columns - means[0] * means[1]
    spread = np.sqrt(np.maximum(spreads[0] * spreads[1], 0))
    drawn = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 1e-9)
    low, high = np.percentile((rows * drawn.T).sum(axis=1), [2.5, 97.5])
    return Measured(float((predicted * actual).mean()), float(low), float(high))


def _standard(values: Doubles) -> Doubles:
    """The ranks of each row, of mean 0 and deviation 1; 0 where all are the same."""
    ranks = np.stack([mean_ranks(row) for row in values])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = ranks.std(axis=1, keepdims=True)
    found: Doubles = np.divide(ranks, spread, out=np.zeros_like(ranks), where=spread > 0)
    return found


def auc(suspicion: Doubles, wrong: NDArray[np.bool_], seed: int) -> Measured:
    """The share of pairs of a wrong and a right sample in which the wrong one is more suspicious; ties count half."""

    def share(rows: NDArray[np.int64]) -> float:
        ranks, bad = mean_ranks(suspicion[rows]), wrong[rows]
        count = int(bad.sum())
        return float((ranks[bad].sum() - count * (count + 1) / 2) / (count * (len(rows) - count)))

    draw = np.random.default_rng(seed)
    groups = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    drawn = [share(np.concatenate([draw.choice(own, len(own)) for own in groups])) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Measured(share(np.arange(len(wrong))), float(low), float(high))
