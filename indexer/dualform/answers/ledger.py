"""What each group of training datapoints did to the loss of some examples. Shapes: n examples, G groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dualform.answers.grade import Grade
from dualform.answers.hits import GroupKey


@dataclass(frozen=True, eq=False)
class Ledger:
    """What moved the loss of each example from where the training began to where it ended:

        final - initial = the sum of `sums` over the groups + the sum of `lines` + residual

    A negative contribution lowered the loss. Of the path method the residual is what the points between leave; of
    first order it is the curvature of all updates too.
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
    "other parameters" of no recorded layer; "buffers", as running means; "truncated", what slots went on to bring when
    they were not followed any more, and what a training in half precision rounded of their sum."""
    residual: NDArray[np.float64]
    """float64[n]: the change of each loss, less all of the above."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    method: str = "first-order"
    unexplained: NDArray[np.float64] | None = None
    """float64[n]: the loss of the network that the training ended with, less `final`, that of the one that was rebuilt:
    what the record does not explain of it. None where the training did not come to its end."""
    grades: Mapping[str, Grade] = field(default_factory=dict)
    """By layer, how exact its record is."""

    def best(self, example: int, k: int) -> list[tuple[GroupKey, float]]:
        """The k groups that moved an example's loss most, by size, with the sign of what they brought."""
        found = self.sums[example]
        order = np.argsort(-np.abs(found), kind="stable")[:k]
        return [(self.groups[group], float(found[group])) for group in order]
