"""Whether the change of a prediction under a filter is more than random filters of its size and siblings bring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, Placebos
from dualform.answers.placebos import FEWEST_SIBLINGS, central
from dualform.errors import BadInput, Inexact, ServiceError
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, query_of
from dualform_explorer.output_layer import output_layer
from dualform_explorer.questions import where
from dualform_explorer.state import State

SETS = 50
"""Random sets."""


@dataclass(frozen=True)
class Interval:
    """The central 95 % of a query's changes under several sets."""

    sets: int
    low: float
    high: float

    @classmethod
    def of(cls, changes: NDArray[np.float64]) -> Interval:
        ((low,), (high,)) = central(changes)
        return cls(changes.shape[1], float(low), float(high))


@dataclass(frozen=True)
class Verdict:
    unusual: bool
    predicted: int
    becomes: int
    change: float
    """Of the margin."""
    random: Interval
    siblings: Interval | None
    """None where they are too few to decide anything."""
    random_flips: float
    """The share of the random sets that change the prediction."""
    removed: int
    total: int
    unit: str

    @property
    def flips(self) -> bool:
        return self.becomes != self.predicted

    @property
    def words(self) -> str:
        """As random sets do, as siblings do, or unusual among both."""
        if self.unusual:
            return "unusual"
        inside = self.random.low <= self.change <= self.random.high
        return "as random" if inside else "as its siblings"


@dataclass(frozen=True)
class PlaceboPanel:
    asked: bool
    """Whether there is a filter of slots at all; without one there is nothing to show."""
    verdict: Verdict | None = None
    note: str = ""
    """Why there is no verdict."""


def placebo_panel(memory: Answers, info: MemoryInfo, state: State) -> PlaceboPanel:
    """Asked of the output layer alone, and only under a filter: the first question takes a pass over its training."""
    kept = where(info, state)
    if kept is None:
        return PlaceboPanel(False)
    found = output_layer(memory, info, examples_of(memory, info, state.query_set))
    layer = state.layer if found is None else found.name
    if layer != info.output_layer:
        return PlaceboPanel(True, note="Random sets are drawn only for the output layer.")
    if not state.initial:
        return PlaceboPanel(True, note="Random sets are drawn only with W₀ and bias.")
    try:
        query = query_of(memory, info, state, layer)
        answer = memory.placebo(layer, query, kept, SETS, state.at, state.inexact)
    except (BadInput, Inexact, ServiceError) as error:
        if error.field == "where":
            raise
        return PlaceboPanel(True, note=f"No random sets: {error.message}")
    return PlaceboPanel(True, verdict_of(answer))


def verdict_of(answer: Placebos) -> Verdict:
    """Of the answer to one query."""
    several = len(answer.siblings) >= FEWEST_SIBLINGS
    return Verdict(
        unusual=bool(answer.unusual[0]),
        predicted=int(answer.predicted[0]),
        becomes=int(answer.outcomes[0, 0]),
        change=float(answer.change[0]),
        random=Interval.of(answer.random_changes),
        siblings=Interval.of(answer.sibling_changes) if several else None,
        random_flips=float(answer.random_flips[0]),
        removed=answer.removed,
        total=answer.total,
        unit=answer.unit,
    )
