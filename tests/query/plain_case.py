"""A layer trained by plain SGD, without a disk, the sums that its answers must be, and the memory that they take."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, strategies as st

from tests.query import arrays

STEPS, BATCH = 12, 10
LR = 0.1
some_cases = given(
    seed=st.integers(0, 2**32),
    label=st.none() | st.integers(0, 3),
    at_step=st.none() | st.integers(0, STEPS),
    repeats=st.booleans(),
)
"""Of a case its seed and whether its rows repeat; a label that is left out; and up to which step."""


def peak_bytes(work):
    """What Python allocates at most while it works, and what the work returns."""
    tracemalloc.start()
    try:
        found = work()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


class Case:
    """A layer trained by plain SGD for a few steps, and the sums written out."""

    def __init__(self, seed=0, d_in=7, d_out=4, repeats=False, **options):
        rng = np.random.default_rng(seed)
        slots = STEPS * BATCH
        rows = rng.normal(size=(20 if repeats else slots, d_in)).astype(np.float32)
        of_slot = rng.integers(0, 20, slots) if repeats else None
        self.keys = rows if of_slot is None else rows[of_slot]
        self.values = rng.normal(size=(slots, d_out)).astype(np.float32)
        self.labels = rng.integers(0, 4, slots)
        self.steps = np.arange(slots) // BATCH
        self.weight = rng.normal(size=(d_out, d_in)).astype(np.float32)
        self.bias = rng.normal(size=d_out).astype(np.float32)
        self.queries = rng.normal(size=(5, d_in)).astype(np.float32)
        final = self.rebuilt(np.ones(slots, dtype=bool))
        self.memory = arrays.memory(
            {"fc": rows},
            {"label": self.labels.tolist(), "step": self.steps.tolist()},
            values={"fc": self.values},
            rows_of_slots={} if of_slot is None else {"fc": of_slot},
            initial={"fc.weight": self.weight, "fc.bias": self.bias, "norm.scale": np.float32([1, 2])},
            final={
                "fc.weight": final[0].astype(np.float32),
                "fc.bias": final[1].astype(np.float32),
                "norm.scale": np.float32([3, 4]),
            },
            **options,
        )
        self.engine = arrays.engine(self.memory)

    def rebuilt(self, stays, at_step=STEPS):
        """Weight and bias, float64."""
        stays = stays & (self.steps < at_step)
        moved = self.values[stays].astype(float)
        return self.weight - LR * moved.T @ self.keys[stays].astype(float), self.bias - LR * moved.sum(axis=0)

    def output(self, stays, at_step=STEPS):
        weight, bias = self.rebuilt(stays, at_step)
        return self.queries.astype(float) @ weight.T + bias
