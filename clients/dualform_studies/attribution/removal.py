"""How well scores foresee what leaving samples out does, and how few of them turn a prediction.

Shapes: t tests, n samples, m trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.attribution.ranks import Doubles, Measured, agreement, spearman


@dataclass(frozen=True, eq=False)
class Foreseen:
    """What scores foresee of some trainings, beside what came of these."""

    foreseen: Doubles
    """float64[t, m]."""
    found: Doubles
    """float64[t, m]."""

    def each(self) -> Doubles:
        """float64[t]: Spearman's correlation over the trainings, of each test."""
        return spearman(self.foreseen, self.found)

    def measured(self, seed: int) -> Measured:
        """Their mean, with the interval of a bootstrap that draws tests and trainings."""
        return agreement(self.foreseen, self.found, seed)


def lds(scores: Doubles, kept: Sequence[NDArray[np.int64]], losses: Doubles) -> Foreseen:
    """The linear datamodeling score (Park et al., 2023): the sum of the scores of each subset that a network was
    trained on, beside what that network makes of each test.

    `scores`: float64[t, n]; `losses`: float64[m, t], of each subset's network.
    """
    inside = np.zeros((len(kept), scores.shape[1]))
    for training, rows in enumerate(kept):
        inside[training, rows] = 1
    return Foreseen(scores @ inside.T, -losses.T)


def leave_one_out(scores: Doubles, removed: NDArray[np.int64], losses: Doubles, whole: Doubles) -> Foreseen:
    """The score of each sample that was removed alone, beside how much each test's loss rose without it.

    `removed`: int64[m]; `losses`: float64[m, t], each without one sample; `whole`: float64[t], with all.
    """
    return Foreseen(scores[:, removed], (losses - whole).T)


def highest(scores: Doubles, test: int, count: int) -> NDArray[np.int64]:
    """int64[count]: the samples that are said to help a test most; equal ones in their order."""
    return np.argsort(-scores[test], kind="stable")[:count]


def smallest_turning(turned: NDArray[np.bool_], sizes: Sequence[int]) -> list[int | None]:
    """Of each test, the least number of removed samples that turned its prediction, None where none of them did.

    `turned`: bool[t, sizes].
    """
    return [next((size for size, one in zip(sizes, row, strict=True) if one), None) for row in turned]
