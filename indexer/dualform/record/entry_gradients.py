"""The gradients of recorded entries, as the slots of steps that no update has used yet make them.

Shapes: P numbers over all entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dualform.record.gradient_factor import Projection
from dualform.record.recorded_entries import RecordedEntries


class EntryGradients:
    """Collects them step by step until an update takes them."""

    def __init__(self, entries: RecordedEntries) -> None:
        self._entries = entries
        self.pending: list[Projection] = []
        """`scales` float64[P]: the sum of the terms' magnitudes, for what rounding may account for."""

    def add(self, step: int, rows: Sequence[tuple[str, Tensor, Tensor]]) -> None:
        """Take one step's slots: keys [n, d_in] and errors [n, d_out] of layers, which may come several times."""
        sums, magnitudes = np.zeros(self._entries.size), np.zeros(self._entries.size)
        for layer, keys, errors in rows:
            self._entries.add_outer(layer, keys, errors, sums, magnitudes)
        self.pending.append(Projection(step, sums, magnitudes))

    def forget(self, step: int) -> None:
        """Take a step back."""
        self.pending = [own for own in self.pending if own.step != step]

    def take(self, first_step: int | None) -> Projection:
        """What the steps from `first_step` on make together; None for no steps. Nothing is pending then."""
        sums, magnitudes = np.zeros(self._entries.size), np.zeros(self._entries.size)
        for own in self.pending:
            if first_step is not None and own.step >= first_step:
                sums += own.sums
                magnitudes += own.scales
        self.pending = []
        return Projection(-1 if first_step is None else first_step, sums, magnitudes)
