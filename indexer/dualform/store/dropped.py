"""What a memory lacks because its slots were sampled to hold a budget (sampling.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Dropped:
    """Of one space."""

    first_step: int
    """The first step that lacks slots: up to there all are kept."""
    slots: int
    """How many the training had and the memory never got."""


def dropped_slots(shares: pa.Table) -> dict[str, Dropped]:
    """By space that lacks any, of the table `shares`."""
    step, slots, kept = (np.asarray(shares[name], dtype=np.int64) for name in ("step", "slots", "kept"))
    spaces, missing = np.array(shares["space"].to_pylist(), dtype=object), slots - kept
    found = {}
    for space in dict.fromkeys(spaces[missing > 0]):
        own = (spaces == space) & (missing > 0)
        found[space] = Dropped(int(step[own].min()), int(missing[own].sum()))
    return found
