"""Whether falls are the optimizer's: two statements of ours, since the text says nothing of them, and their tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dualform_studies.exact_tests import more_often, sign_test
from dualform_studies.memorisation.boosting.falls import FALL, NEAR, WINDOW, HeadOne
from dualform_studies.memorisation.heads.own_sets import PAIRS
from dualform_studies.memorisation.second_study import plain_percent
from dualform_studies.pages.items import Table
from dualform_studies.pages.words import in_fraction

LEVEL = 0.05
"""Greatest p at which a statement is shown."""
FALL_IN_WORDS = f"a loss of {round(FALL * PAIRS)} pairs or more within {in_fraction(WINDOW)} of the training"


@dataclass(frozen=True)
class Statement:
    """A statement and what came of it."""

    statement: str
    ours: str
    test: str
    p: float

    @property
    def shown(self) -> bool:
        return self.p <= LEVEL


def small_steps(found: Mapping[str, HeadOne]) -> Statement:
    """That steps of a quarter lose less, network by network."""
    sgd, small = found["SGD"], found["SGD, small"]
    lost, lost_small = (PAIRS * float(one.lost.mean()) for one in (sgd, small))
    return Statement(
        "Smaller steps lose less of what head 1 had learned.",
        f"{lost:.1f} pairs lost with SGD's steps, {lost_small:.1f} with a quarter of them (means); falls in "
        f"{_of(sgd.fell)} and {_of(small.fell)} seeds",
        "one-sided sign test over the seeds",
        sign_test(sgd.lost - small.lost),
    )


def curved_before(found: Mapping[str, HeadOne]) -> Statement:
    """That the loss of the networks that fall had come nearer to what SGD follows than that of the others."""
    sgd = found["SGD"]
    near = sgd.at_bound()
    fell, others = near[sgd.fell], near[~sgd.fell]
    return Statement(
        f"Before a fall, the loss has come within {plain_percent(1 - NEAR)} of the curvature that SGD follows.",
        f"{_of(fell)} seeds that fell had, up to their fall, and {_of(others)} of the others, up to their end",
        "Fisher's exact test, one-sided, of fallen seeds against others",
        more_often(fell, others),
    )


def statements_table(statements: Sequence[Statement]) -> Table:
    return Table(
        "falls-statements",
        "Two statements of ours about falls, of which the text says nothing. A statement is shown where p is at most "
        f"{LEVEL:g}.",
        ("statement", "found", "test", "p", "shown"),
        [(one.statement, one.ours, one.test, f"{one.p:.2g}", "yes" if one.shown else "no") for one in statements],
    )


def _of(counted: np.ndarray) -> str:
    return f"{int(counted.sum())} of {len(counted)}"
