"""What each group of training datapoints did to the loss of some examples. Shapes: n examples, G groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.hits import GroupKey
from dualform.answers.plots import axes_or_new, check_number, draw_bars, name_of
from dualform.answers.status import Status
from dualform.answers.table import Table, beside, counted, first_places, group_columns

_PLAUSIBLE = 50
"""A group that moved a loss by so many times more than the loss changed is worth a warning."""


@dataclass(frozen=True, eq=False, repr=False)
class Ledger(Table):
    """What moved the loss of each example from where the training began to where it ended:

        final - initial = the sum of `sums` over the groups + the sum of `lines` + residual

    A negative contribution lowered the loss. Of the path method the residual is what the points between leave; of
    first order it is the curvature of all updates too. Iterated, it gives all groups of one example after another, as
    `best` does.
    """

    name: str
    """That of the influence."""
    groups: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]: what the slots of a group brought, in all recorded layers together."""
    counts: NDArray[np.int64]
    """int64[G]: slots in each group, of all recorded layers' spaces."""
    initial: NDArray[np.float64]
    """float64[n]: the loss of each example before the first step."""
    final: NDArray[np.float64]
    """float64[n]: after the last."""
    lines: Mapping[str, NDArray[np.float64]]
    """float64[n] each: what no slot brought. "decay" of weights, and of what the optimizer held before the record;
    "rounding", of biases whose gradient is only rounding; "other parameters" of no recorded layer; "buffers", as
    running means; "truncated", what slots went on to bring when they were not followed any more, and what a training
    in half precision rounded of their sum."""
    residual: NDArray[np.float64]
    """float64[n]: the change of each loss, less all of the above."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    method: str = "first-order"
    unexplained: NDArray[np.float64] | None = None
    """float64[n]: the loss of the network that the training ended with, less `final`, that of the one that was rebuilt:
    what the record does not explain of it. None where the training did not come to its end."""
    statuses: Mapping[str, Status] = field(default_factory=dict)
    """By layer, how exact its record is."""

    @property
    def largest(self) -> NDArray[np.float64]:
        """float64[n]: the size of the largest contribution of one group, to be read next to the change of the loss."""
        found: NDArray[np.float64] = np.abs(self.sums).max(axis=1, initial=0.0)
        return found

    @property
    def remark(self) -> str:
        """One sentence if the largest group is more than 50 times the largest change of a loss; empty if not."""
        largest, change = self._extremes()
        if largest <= _PLAUSIBLE * change:
            return ""
        return (
            f"the largest group of ledger {self.name!r} moved a loss by {largest:.3g}, and the losses changed by at "
            f"most {change:.3g}. The groups cancel each other out: do not rank them"
        )

    def _extremes(self) -> tuple[float, float]:
        """The largest contribution of one group, and the largest change of a loss."""
        return float(self.largest.max(initial=0.0)), float(np.abs(self.final - self.initial).max(initial=0.0))

    def best(self, example: int, k: int) -> list[tuple[GroupKey, float]]:
        """The k groups that moved an example's loss most, by size, with the sign of what they brought."""
        found = self.sums[example]
        order = np.argsort(-np.abs(found), kind="stable")[:k]
        return [(self.groups[group], float(found[group])) for group in order]

    def __len__(self) -> int:
        return len(self.sums)

    def __iter__(self) -> Iterator[list[tuple[GroupKey, float]]]:
        return (self.best(example, len(self.groups)) for example in range(len(self)))

    @property
    def rows(self) -> int:
        return int(self.sums.shape[0] * (self.sums.shape[1] + len(self.lines) + 1))

    def table(self, most: int | None = None) -> Columns:
        """A row an example and term: example, the term ("group", a line, or "residual"), the columns of `by`, which
        only groups have, and what it brought.
        """
        n, groups = self.sums.shape
        terms = [*["group"] * groups, *self.lines, "residual"]
        example, place = first_places((n, len(terms)), most)
        others = np.stack([*self.lines.values(), self.residual], axis=1)
        of_group = place < groups
        value = others[example, np.maximum(place - groups, 0)]
        value[of_group] = self.sums[example[of_group], place[of_group]]
        found = {"example": example, "term": column_of([terms[own] for own in place.tolist()]), "contribution": value}
        keys = [*self.groups, *[(None,) * len(self.by)] * (len(self.lines) + 1)]
        return Columns(beside(found, group_columns(self.by, keys, place), 2))

    def plot(self, example: int = 0, most: int = 20, axes: Any = None) -> Any:
        """What moved one example's loss, as bars that add up to its change: the `most` groups that moved it most, all
        others together, the lines and the residual. Returns matplotlib's axes.
        """
        shown = self.best(check_number(example, len(self), "example"), most)
        names = [name_of(self.by, group) for group, _ in shown]
        rest = float(self.sums[example].sum()) - sum(own for _, own in shown)
        others = {name: float(own[example]) for name, own in self.lines.items()}
        drawn = {**others, "residual": float(self.residual[example])}
        if len(shown) < len(self.groups):
            drawn = {f"{len(self.groups) - len(shown):,} others": rest, **drawn}
        axes = axes_or_new(axes)
        draw_bars(axes, [*names, *drawn], [*(own for _, own in shown), *drawn.values()], "change of the loss")
        axes.set_ylabel(", ".join(self.by))
        return axes

    def title(self) -> str:
        by = f" by {', '.join(self.by)}" if self.by else ""
        sizes = f"{counted(len(self), 'example')}, {counted(len(self.groups), 'group')}"
        largest, change = self._extremes()
        moved = f"the largest group moved a loss by {largest:.3g}, losses changed by up to {change:.3g}"
        return f"Ledger {self.name!r}{by}, {self.method}: {sizes}; {moved}"
