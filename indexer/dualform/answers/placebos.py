"""Whether what an ablation changes means anything. Shapes: n queries, R random sets of samples, S siblings.

A *set* is what an ablation leaves out of the sum. The first one is the question's own; then come R sets of as many
samples drawn at random, and S siblings of the first: the other values of the columns that it names, or other spans of
as many steps. Arrays by set have 1 + R + S columns, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, counted

CENTRAL = (0.025, 0.975)
"""Quantiles of a null that hold 95 % of it."""
FEWEST_RANDOM = 20
"""Random sets that tell whether a change is unusual; with fewer, none is."""
FEWEST_SIBLINGS = 5
"""That tell whether a change is unusual among them; fewer are shown, and decide nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Placebos(Table):
    """The change of each query's margin under an ablation, under random ablations of its size, and under its siblings.

    The margin is the predicted output minus the largest other one. The prediction is the layer's with all of its
    training, so a negative margin under an ablation means another prediction. If a layer has one output, this output is
    its margin. A change is the margin under an ablation minus the margin without one.
    Sets are numbered: 0 the ablation, then R random sets, then S siblings.
    """

    labels: NDArray[np.int64]
    """int64[n], -1 if unknown."""
    predicted: NDArray[np.int64]
    """int64[n]: the largest output."""
    second: NDArray[np.int64]
    """int64[n]: the second largest output; -1 if the layer has one output."""
    margin: NDArray[np.float64]
    """float64[n]."""
    changes: NDArray[np.float64]
    """float64[n, 1 + R + S]: the change of the margin, by set."""
    outcomes: NDArray[np.int64]
    """int64[n, 1 + R + S]: the largest output, by set."""
    random: int
    """R."""
    siblings: tuple[str, ...]
    """The names of the S siblings, such as "label = 7"."""
    without_siblings: str
    """Why siblings are missing; otherwise empty."""
    removed: int
    """The number of samples that the ablation removes."""
    total: int
    """The number of all samples."""
    unit: str
    """The unit of random sets: "samples", or "rows" or "slots" if samples were not recorded."""
    cancellation: float | None = None
    """The cancellation of the layer; None under optimizers that scale gradients, which give slots no separate terms."""
    status: Status = field(default_factory=lambda: Status("exact"))
    """The status of the layer."""
    space: str = ""
    """The slot space of the layer."""
    scan: Scan = field(default_factory=Scan)

    @property
    def change(self) -> NDArray[np.float64]:
        """float64[n]: the change of the margin under the ablation."""
        return self.changes[:, 0]

    @property
    def random_changes(self) -> NDArray[np.float64]:
        """float64[n, R]."""
        return self.changes[:, self._random]

    @property
    def sibling_changes(self) -> NDArray[np.float64]:
        """float64[n, S]."""
        return self.changes[:, self._siblings]

    @property
    def random_flips(self) -> NDArray[np.float64]:
        """float64[n]: the share of the random sets that change the prediction."""
        return self._flipped(self._random)

    @property
    def sibling_flips(self) -> NDArray[np.float64]:
        """float64[n]: the share of the siblings that change it."""
        return self._flipped(self._siblings)

    def _flipped(self, sets: slice) -> NDArray[np.float64]:
        return np.asarray((self.outcomes[:, sets] != self.predicted[:, None]).mean(axis=1))

    @property
    def _random(self) -> slice:
        """The columns of the random sets, in arrays by set."""
        return slice(1, 1 + self.random)

    @property
    def _siblings(self) -> slice:
        return slice(1 + self.random, None)

    @property
    def flips(self) -> NDArray[np.bool_]:
        """bool[n]: whether the ablation changes the prediction."""
        return np.asarray(self.outcomes[:, 0] != self.predicted)

    @property
    def unusual(self) -> NDArray[np.bool_]:
        """bool[n]: whether the change is outside the central 95 % of the random sets and, if there are at least
        FEWEST_SIBLINGS, of the siblings.
        """
        return self._unusual(self.changes)

    def _unusual(self, by_set: NDArray[np.floating | np.integer]) -> NDArray[np.bool_]:
        """bool[n] of [n, 1 + R + S]: whether the first of each row is outside the central 95 % of both nulls."""
        if self.random < FEWEST_RANDOM:
            return np.zeros(len(by_set), dtype=bool)
        found = outside(by_set[:, 0], by_set[:, self._random])
        if len(self.siblings) >= FEWEST_SIBLINGS:
            found &= outside(by_set[:, 0], by_set[:, self._siblings])
        return found

    @property
    def corrected(self) -> NDArray[np.int64]:
        """int64[1 + R + S]: by set, the queries that are misclassified with all of the training, and correct without
        the set.
        """
        return self._counted(self.predicted != self.labels, self.outcomes == self.labels[:, None])

    @property
    def broken(self) -> NDArray[np.int64]:
        """int64[1 + R + S]: by set, the queries that are correct with all of the training, and misclassified without
        the set.
        """
        return self._counted(self.predicted == self.labels, self.outcomes != self.labels[:, None])

    @property
    def misclassified(self) -> int:
        """The number of queries that are misclassified with all of the training: at most so many become correct."""
        return int((self._labelled & (self.predicted != self.labels)).sum())

    @property
    def correct(self) -> int:
        """The number of queries that are correct with all of the training: at most so many become misclassified."""
        return int((self._labelled & (self.predicted == self.labels)).sum())

    @property
    def _labelled(self) -> NDArray[np.bool_]:
        return np.asarray((self.labels >= 0) & (self.second >= 0))  # one output predicts no class

    def _counted(self, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.asarray(((self._labelled & before)[:, None] & after).sum(axis=0), dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """The size of the numbers in bytes."""
        return self.changes.nbytes + self.outcomes.nbytes + 4 * self.margin.nbytes

    def part(self, start: int, stop: int) -> Placebos:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        names = ("labels", "predicted", "second", "margin", "changes", "outcomes")
        return replace(self, **{name: getattr(self, name)[start:stop] for name in names})

    def __len__(self) -> int:
        return len(self.margin)

    def __iter__(self) -> Iterator[Placebos]:
        return (self.part(query, query + 1) for query in range(len(self)))

    @property
    def rows(self) -> int:
        return len(self)

    def table(self, most: int | None = None) -> Columns:
        """One row for each query: label, predicted and second output, margin, its change, the central 95 % of both
        comparisons, the share of each that changes the prediction, and whether the change is unusual.
        """
        own = self.part(0, len(self) if most is None else most)
        found: dict[str, NDArray[Any]] = {
            "query": np.arange(len(own)),
            "label": column_of([None if label < 0 else label for label in own.labels.tolist()]),
            "predicted": own.predicted,
            "second": own.second,
            "margin": own.margin,
            "change": own.change,
            "becomes": own.outcomes[:, 0],
        }
        for name, sets in (("random", self._random), ("sibling", self._siblings)):
            if (changes := own.changes[:, sets]).shape[1]:
                low, high = central(changes)
                found |= {f"{name}_low": low, f"{name}_high": high, f"{name}_flips": own._flipped(sets)}
        return Columns({**found, "unusual": own.unusual}, self.scan, self.space)

    def summary(self) -> dict[str, Any]:
        """A summary for JSON: how much was removed, how many changes are unusual, and how many predictions become
        correct or wrong, out of how many. It has the median and range of these counts for both comparisons. A count is
        unusual if it is outside the central 95 % of both.
        """
        counts = {"corrected": (self.corrected, self.misclassified), "broken": (self.broken, self.correct)}
        return {
            "removed": self.removed,
            "of": self.total,
            "unit": self.unit,
            "queries": len(self),
            "flips": int(self.flips.sum()),
            "unusual": int(self.unusual.sum()),
            **{
                name: {
                    "of": before,
                    "ablation": int(own[0]),
                    "random": _spread(own[self._random]),
                    "siblings": _spread(own[self._siblings]),
                    "unusual": bool(self._unusual(own[None])[0]),
                }
                for name, (own, before) in counts.items()
                if self._labelled.any()
            },
            "cancellation": self.cancellation,
            "siblings": list(self.siblings),
            "without_siblings": self.without_siblings,
        }

    def title(self) -> str:
        left_out = f"without {self.removed:,} of {self.total:,} {self.unit}"
        nulls = f"{counted(self.random, 'random set')}, {counted(len(self.siblings), 'sibling')}"
        unusual = f"{counted(len(self), 'query')} {left_out}, {int(self.unusual.sum()):,} unusual"
        return f"Placebos: {unusual}; {nulls}; the layer's record is {self.status}"


def central(null: NDArray[Any]) -> NDArray[np.float64]:
    """float64[2, n]: the ends of the central 95 % of each row of float64[n, m]."""
    return np.asarray(np.quantile(null, CENTRAL, axis=1))


def outside(value: NDArray[Any], null: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[n]: whether each value is outside the central 95 % of its row of float64[n, m]; False without any."""
    if not null.shape[1]:
        return np.zeros(len(value), dtype=bool)
    low, high = central(null)
    return np.asarray((value < low) | (value > high))


def _spread(counts: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(counts):
        return None
    return {"median": float(np.median(counts)), "least": int(counts.min()), "most": int(counts.max())}
