"""Where the paper's own passages come among all training token positions, and how many of the best are of their form.

Shapes: P token positions of the training text that were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dualform_studies.text.attention import best
from dualform_studies.text.corpora import Corpus
from dualform_studies.text.forms import Cases, Form, forms_of
from dualform_studies.text.passages import find
from dualform_studies.text.published import PublishedTable
from dualform_studies.text.tokens import Tokens

_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
BEST = 10
"""Positions that are held against a form."""


@dataclass(frozen=True, eq=False)
class Standard:
    """What a table of the paper shows, in the training text at hand."""

    table: PublishedTable
    places: Sequence[int | None]
    """Of each of its rows: which token of the training text is marked; None where the text has not the passage."""
    forms: Sequence[Form]
    cases: Sequence[Cases]
    """Of each form."""

    @classmethod
    def of(cls, table: PublishedTable, tokens: Tokens, corpus: Corpus) -> Standard:
        found = (find(tokens.text, row.passage) for row in table.rows)
        places = [None if place is None else tokens.first_from(place[1]) for place in found]
        forms = forms_of(table.number)
        return cls(table, places, forms, [form.cases(tokens, corpus) for form in forms])

    @property
    def comparable(self) -> bool:
        """Whether the training text has any of its passages."""
        return any(place is not None for place in self.places)

    def ranks(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[int | None]:
        """Of each row its rank (1: the greatest) among sums float64[P] of positions int64[P], ascending; None where the
        text does not have it, or the training has not come so far in the text."""
        return [None if place is None else rank(positions, sums, place) for place in self.places]

    def of_the_best(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[int]:
        """Of each form: how many of the BEST positions are of it."""
        return [count_best(positions, sums, cases) for cases in self.cases]

    def of_all(self, positions: NDArray[np.int64]) -> list[int]:
        """Of each form: how many of all positions are of it."""
        return [int(np.isin(positions, cases.places).sum()) for cases in self.cases]

    def elsewhere(self, positions: NDArray[np.int64]) -> list[int]:
        """Of each form: how many of all positions its article alone rules out."""
        return [int(np.isin(positions, cases.elsewhere).sum()) for cases in self.cases]

    def told_apart(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[float | None]:
        """Of each form: the chance that a case of it has a greater sum than one that its article alone rules out (0.5
        where the article makes no difference); None where there are not both.
        """
        return [
            _greater(sums[np.isin(positions, cases.places)], sums[np.isin(positions, cases.elsewhere)])
            for cases in self.cases
        ]


def count_best(positions: NDArray[np.int64], sums: NDArray[np.float64], cases: Cases) -> int:
    """How many of the BEST positions are among the cases of a form."""
    return int(np.isin(positions[best(sums, BEST)], cases.places).sum())


def rank(positions: NDArray[np.int64], sums: NDArray[np.float64], place: int) -> int | None:
    """1 for the greatest; None where the position is not among those int64[P], ascending, that have sums."""
    at = int(np.searchsorted(positions, place))
    if at == len(positions) or positions[at] != place:
        return None
    return 1 + int((sums > sums[at]).sum())


def _greater(ours: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    """The share of all pairs in which ours is greater, where equal ones count half."""
    if not len(ours) or not len(others):
        return None
    ordered = np.sort(others)
    below, not_above = (np.searchsorted(ordered, ours, side=side) for side in _SIDES)
    return float((below + not_above).mean() / (2 * len(others)))
