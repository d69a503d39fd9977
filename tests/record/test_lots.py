"""Lots decide which samples a budget keeps: the same on every machine, and as good as chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.store.layer import Sampling
from tests.record.sampled_training import (
    drawn,
)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64), st.integers(0, 2**40), st.lists(st.integers(-1, 2**50), max_size=5))
def test_lots_are_those_of_whole_numbers(seed, step, rows):
    given_rows = np.array(rows, np.int64)
    assert Sampling("samples", seed, 1).lots(step, given_rows).tolist() == [drawn(seed, step, row) for row in rows]
    assert Sampling("steps", seed, 1).lots(step, given_rows).tolist() == [drawn(seed, step)] * len(rows)


@pytest.mark.parametrize("axis", ["row", "step", "seed"])
def test_lots_are_as_good_as_chance_along_each_of_their_numbers(axis):
    count = 1 << 14
    if axis == "row":
        lots = Sampling("samples", 0, 1).lots(3, np.arange(count))
    else:
        lots = np.array([drawn(*((0, n, 3) if axis == "step" else (n, 0, 3))) for n in range(count)])
    edges = np.histogram(lots, 16, (0, 1))[0]
    assert ((edges - count / 16) ** 2 / (count / 16)).sum() < 40  # chi squared, 15 degrees: one in 2,000
    assert abs(np.corrcoef(lots[:-1], lots[1:])[0, 1]) < 4 / count**0.5
