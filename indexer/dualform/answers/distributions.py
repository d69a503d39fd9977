"""How a query's scores are spread over the training datapoints. Shapes: n queries, r ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns
from dualform.answers.plots import axes_or_new, check_number, draw_curve
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, counted, first_places


@dataclass(frozen=True, eq=False, repr=False)
class Distributions(Table):
    """The scores of all slots by rank, for each query: highest score first, ties by slot number.

    Scores are given at some ranks, the same for every query. They are evenly spaced on a logarithmic axis, from the
    best slot to the last, and contain the first ten. Iterating gives a Distributions for each query.
    """

    ranks: NDArray[np.int64]
    """int64[r], ascending, from 1 to `count`, both included."""
    scores: NDArray[np.float32]
    """float32[n, r]: the score at each rank."""
    cumulative: NDArray[np.float64]
    """float64[n, r]: the sum of the absolute scores up to and including each rank."""
    totals: NDArray[np.float64]
    """float64[n]: the sum of the absolute scores of all slots."""
    effective_slots: NDArray[np.float64]
    """float64[n], (sum |s|)^2 / sum s^2: the effective number of slots; 0.0 if all scores are 0."""
    count: int
    """The number of ranked slots: those that the filter keeps and, for contributions, whose gradient an update used."""
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space."""
    status: Status | None = None
    """For contributions, the status of the layer; None for other scores."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of the numbers that grow with the queries."""
        return self.scores.nbytes + self.cumulative.nbytes + self.totals.nbytes + self.effective_slots.nbytes

    def part(self, start: int, stop: int) -> Distributions:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        own = slice(start, stop)
        return replace(
            self,
            scores=self.scores[own],
            cumulative=self.cumulative[own],
            totals=self.totals[own],
            effective_slots=self.effective_slots[own],
        )

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[n, r]: `cumulative` as a share of the total; 0.0 if all scores are 0."""
        totals = self.totals[:, None]
        return np.divide(self.cumulative, totals, out=np.zeros_like(self.cumulative), where=totals > 0)

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Distributions]:
        return (self.part(query, query + 1) for query in range(len(self)))

    @property
    def rows(self) -> int:
        return self.scores.size

    def table(self, most: int | None = None) -> Columns:
        """One row for each query and rank: query, rank, score, sum of absolute scores so far, and its share."""
        query, place = first_places(self.scores.shape, most)
        found: dict[str, NDArray[Any]] = {
            "query": query,
            "rank": self.ranks[place],
            "score": self.scores[query, place],
            "cumulative": self.cumulative[query, place],
            "share": self.shares[query, place],
        }
        return Columns(found, self.scan, self.space)

    def plot(self, query: int = 0, axes: Any = None) -> Any:
        """Plot the scores of one query by rank, on a logarithmic axis. Returns matplotlib's axes."""
        own = check_number(query, len(self), "query")
        axes = axes_or_new(axes)
        draw_curve(axes, self.ranks, self.scores[own], "score")
        return axes

    def title(self) -> str:
        return f"Distributions: {counted(len(self), 'query')}, {counted(self.count, 'slot')}"
