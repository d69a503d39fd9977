"""Whether scores find the samples whose label is wrong. Shapes: n samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.answers.rank_correlation import mean_ranks
from dualform_studies.attribution.ranks import Doubles, Measured

_DRAWS = 1000


def auc(suspicion: Doubles, wrong: NDArray[np.bool_]) -> float:
    """The share of pairs of a wrong and a right sample in which the wrong one is more suspicious; ties count half."""
    bad = int(wrong.sum())
    return float((mean_ranks(suspicion)[wrong].sum() - bad * (bad + 1) / 2) / (bad * (len(wrong) - bad)))


def auc_with_interval(suspicion: Doubles, wrong: NDArray[np.bool_], seed: int) -> Measured:
    """The same with the interval that a bootstrap leaves, which draws wrong and right samples apart."""
    draw = np.random.default_rng(seed)
    groups = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    found = []
    for _ in range(_DRAWS):
        rows = np.concatenate([draw.choice(group, len(group)) for group in groups])
        found.append(auc(suspicion[rows], wrong[rows]))
    return Measured(auc(suspicion, wrong), *np.percentile(found, [2.5, 97.5]).tolist())
