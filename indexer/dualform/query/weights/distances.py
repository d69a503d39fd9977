"""What the watch of the recorder logged of each parameter: how far it was from its record, and when.

A row says how the weights stood once its step was over. Between two rows they are known only if both are good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.query.weights.run_distances import of_run, of_runs
from dualform.query.weights.seams import Seam
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

STANDS_OUT = 8.0
"""A one-step distance this many times what rounding may account for is a jump."""


@dataclass(frozen=True, eq=False)
class Distances:
    """One block's rows, in the order they were logged; arrays of one length."""

    parameter: str
    step: NDArray[np.int64]
    one_step: Doubles
    accumulated: Doubles
    way: Doubles
    rounding: Doubles
    noise: Doubles
    seams: tuple[Seam, ...] = ()
    """Where a run did not begin as the one before ended."""

    @property
    def nbytes(self) -> int:
        return 6 * self.step.nbytes

    def around(self, at_step: int) -> NDArray[np.int64]:
        """The rows that bear witness once `at_step` steps were taken: those of that moment, else its neighbours.

        The end of a training that was cut off is its last row. Empty where there is none at all.
        """
        low, high = np.searchsorted(self.step, [at_step - 1, at_step])
        if low < high:
            return np.arange(low, high)
        return np.array([row for row in (low - 1, low) if 0 <= row < len(self.step)], dtype=np.int64)

    def jump(self, last: int) -> int | None:
        """The step of the first row up to row `last` whose one-step distance stands out; None where none does."""
        found = np.flatnonzero(self.one_step[: last + 1] > STANDS_OUT * self.noise[: last + 1])
        return int(self.step[found[0]]) if len(found) else None


def distances(view: View, layer: Layer) -> list[Distances]:
    """Of each block of a layer."""
    return [_of_block(view, block) for block in layer.parameters]


def _of_block(view: View, block: Parameter) -> Distances:
    return view.cache.get(("distances", block.block_name), lambda: _read(view, block))


def _read(view: View, block: Parameter) -> Distances:
    runs = view.snapshot.runs
    if len(runs) > 1:
        steps, numbers, seams = of_runs(view, block)
        return replace(Distances(block.block_name, steps, *numbers.T), seams=seams)
    steps, numbers = of_run(runs[0], block.block_name)
    return Distances(block.block_name, steps, *numbers.T)
