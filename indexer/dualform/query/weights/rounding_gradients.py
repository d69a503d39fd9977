"""Gradients of biases that are rounding alone, as the recorder kept them: no slot's part of an update.

They take the place of what slots make of those entries, in the whole and under every mask: like W_0 they stand whatever
a mask leaves, so that the parts of masks add up to the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.rules.update_rule import Doubles

_TABLE = "rounding_gradients"


@dataclass(frozen=True, eq=False)
class RoundingGradients:
    """Of one block."""

    by_step: Mapping[int, tuple[NDArray[np.int64], Doubles]]
    """Entries of the block and their gradient, by the step of the update."""

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes + gradient.nbytes for rows, gradient in self.by_step.values())

    @property
    def rows(self) -> NDArray[np.int64]:
        """int64[r]: the entries that had any."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self.by_step.values())]))

    def rows_at(self, step: int) -> NDArray[np.int64]:
        """int64[r]: those that had any at an update."""
        return self.by_step[step][0] if step in self.by_step else np.empty(0, np.int64)

    def put(self, step: int, gradient: Doubles) -> Doubles:
        """A block's gradient at an update, with what is no slot's in its place; written to where there is any."""
        if step in self.by_step:
            rows, own = self.by_step[step]
            gradient[rows] = own
        return gradient


def rounding_gradients(view: View, block: str) -> RoundingGradients:
    """Of a block, by its name."""
    return view.cache.get((_TABLE, block), lambda: _read(view, block))


def _read(view: View, block: str) -> RoundingGradients:
    if _TABLE not in view.snapshot.manifest.tables():
        return RoundingGradients({})
    table = view.snapshot.table(_TABLE)
    own = table.filter(pc.equal(table["parameter"], block))
    lists = zip(own["rows"], own["gradient"], strict=True)
    return RoundingGradients(
        {
            step: (np.asarray(rows.values, dtype=np.int64), np.array(gradient.values, dtype=np.float64))
            for step, (rows, gradient) in zip(own["step"].to_pylist(), lists, strict=True)
        }
    )
