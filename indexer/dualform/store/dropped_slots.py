"""What a memory lacks because its slots were sampled to hold a budget (sampling.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dualform.store.entries import Integers


@dataclass(frozen=True, eq=False)
class DroppedSlots:
    """Of one space that lacks any."""

    steps: Integers
    """int64[s], ascending: those that lack slots."""
    slots: int
    """How many the training had and the memory never got."""

    @property
    def first_step(self) -> int:
        """Up to there all slots are kept."""
        return int(self.steps[0])


def dropped_slots(shares: pa.Table) -> dict[str, DroppedSlots]:
    """By space that lacks any, of the table `shares`."""
    step, slots, kept = (np.asarray(shares[name], dtype=np.int64) for name in ("step", "slots", "kept"))
    spaces, missing = np.array(shares["space"].to_pylist(), dtype=object), slots - kept
    found = {}
    for space in dict.fromkeys(spaces[missing > 0]):
        own = (spaces == space) & (missing > 0)
        found[space] = DroppedSlots(np.unique(step[own]), int(missing[own].sum()))
    return found
