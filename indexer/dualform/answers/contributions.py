"""What each group of training datapoints brought to a layer's output. Shapes: n queries, G groups, d_out outputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers.grade import Grade
from dualform.answers.hits import GroupKey
from dualform.answers.scan import Scan


@dataclass(frozen=True, eq=False)
class Contributions:
    """The terms of a layer's output under a mask, all of which add up to it:

    output = initial + bias + standing + the sum of `sums` over the groups + residual        (paper, equation 13)
    """

    groups: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G, d_out]: sum over the slots t of a group of (x_t . q) e_t, without any of the bias."""
    counts: NDArray[np.int64]
    """int64[G]: slots in each group."""
    initial: NDArray[np.float64]
    """float64[n, d_out]: what began before the record, a_0 W_0 q, and what the optimizer held then."""
    bias: NDArray[np.float64]
    """float64[d_out]: the whole bias as the mask leaves it, what the slots brought to it too; zeros without one."""
    standing: NDArray[np.float64]
    """float64[n, d_out]: what moved the weight outside the record, or was forgotten, whatever the mask leaves."""
    residual: NDArray[np.float64]
    """float64[n, d_out]: the output that the same mask's weights give, less all of the above: roundings."""
    unexplained: NDArray[np.float64] | None = None
    """float64[n, d_out]: the network's own output as its training ended, less what the record of all slots makes of it:
    how exact the record is for these queries, whatever the mask. None as of an earlier step, and where the training did
    not come to its end.
    """
    by: tuple[str, ...] = ()
    """The columns that the question grouped by."""
    space: str = ""
    """The slot space of the layer, whose slots were grouped."""
    grade: Grade = field(default_factory=lambda: Grade("exact"))
    """How exact the layer's record is as of the step that was asked for."""
    scan: Scan = field(default_factory=Scan)

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers that grow with the queries."""
        return self.sums.nbytes + 4 * self.initial.nbytes

    def part(self, start: int, stop: int) -> Contributions:
        """The answer to the queries from start to stop. What answering took stays that of the whole."""
        own = slice(start, stop)
        unexplained = None if self.unexplained is None else self.unexplained[own]
        return replace(
            self,
            sums=self.sums[own],
            initial=self.initial[own],
            standing=self.standing[own],
            residual=self.residual[own],
            unexplained=unexplained,
        )

    @property
    def output(self) -> NDArray[np.float64]:
        """float64[n, d_out]: what all of it adds up to, which `output` gives under the same mask."""
        total: NDArray[np.float64] = self.sums.sum(axis=1) + self.initial + self.bias + self.standing + self.residual
        return total
