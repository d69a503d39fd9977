"""The effect of each group of training datapoints on the loss of examples. Shapes: n examples, G groups."""

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
    """The contribution of each group to the change of each example's loss over the training.

        final - initial = the sum of `sums` over the groups + the sum of `lines` + residual

    A negative contribution lowered the loss. With method="path" the residual is a small integration error; with
    "first-order" it also contains the curvature of all updates. Iterating gives the groups of each example, as `best`
    does.
    """

    name: str
    """The name of the influence."""
    groups: tuple[GroupKey, ...]
    """The values of `by` for each group, in order of value, with NULL (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]: the contribution of each group, summed over all recorded layers."""
    counts: NDArray[np.int64]
    """int64[G]: the number of slots in each group, over the spaces of all recorded layers."""
    initial: NDArray[np.float64]
    """float64[n]: the loss of each example before the first step."""
    final: NDArray[np.float64]
    """float64[n]: the loss of each example after the last step."""
    lines: Mapping[str, NDArray[np.float64]]
    """float64[n] for each line, a contribution that belongs to no slot. "decay": weight decay, and optimizer state from
    before the record. "rounding": biases whose gradient is only rounding. "other parameters": those outside the
    recorded layers. "buffers": such as running means. "truncated": the rest of slots that the ledger stopped
    following, and rounding in half precision."""
    residual: NDArray[np.float64]
    """float64[n]: the change of each loss minus all other terms."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    method: str = "first-order"
    unexplained: NDArray[np.float64] | None = None
    """float64[n]: the loss of the trained network minus `final`, the loss of the rebuilt one. None if the training did
    not end."""
    statuses: Mapping[str, Status] = field(default_factory=dict)
    """The status of each layer."""

    @property
    def largest(self) -> NDArray[np.float64]:
        """float64[n]: the size of the largest contribution of one group. Compare it with the change of the loss."""
        found: NDArray[np.float64] = np.abs(self.sums).max(axis=1, initial=0.0)
        return found

    @property
    def remark(self) -> str:
        """A warning if the largest group is more than 50 times the largest change of a loss; otherwise empty."""
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
        """The k groups with the largest contributions to an example's loss, positive or negative."""
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
        """One row for each example and term: example, term ("group", a line or "residual"), the columns of `by`,
        contribution.
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
        """Plot the change of one example's loss as bars that add up: the `most` largest groups, all others, lines,
        residual.

        Returns matplotlib's axes.
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
