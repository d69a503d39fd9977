"""Sums of absolute scores by group have in every form the bits of additions one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from dualform.kernels.arguments import Runs
from dualform.kernels.sums import sum_deviations, sum_runs
from tests.kernels.forms import EXAMPLES, FORMS, using

SOME = settings(max_examples=EXAMPLES, deadline=None)
SEEDS, COLUMNS = st.integers(0, 1000), st.sampled_from([1, 7, 255, 256, 257, 530])
GROUPS = 5


def drawn_runs(rng):
    """Starts, groups and times of runs; some groups have none, and others several."""
    lengths = rng.integers(1, 6, rng.integers(1, 12))
    groups = np.sort(rng.integers(0, GROUPS, len(lengths)))
    return np.concatenate([[0], np.cumsum(lengths)]), groups, rng.integers(1, 9, len(lengths)).astype(float)


def added(sums, scores, starts, groups, times):
    """Number after number, in Python's floats."""
    found = sums.copy()
    for column in range(scores.shape[1]):
        for group in np.unique(groups).tolist():
            total = 0.0
            for run in np.flatnonzero(groups == group).tolist():
                own = 0.0
                for score in scores[starts[run] : starts[run + 1], column].tolist():
                    own += score
                total += own * float(times[run])
            found[group, column] += total
    return found


def numbers(rng, shape):
    return rng.normal(size=shape) * 10.0 ** rng.integers(-10, 11, shape) * rng.integers(0, 2, shape)


@FORMS
@SOME
@given(seed=SEEDS, columns=COLUMNS)
def test_absolute_values_by_group(form, seed, columns):
    rng = np.random.default_rng(seed)
    starts, groups, times = drawn_runs(rng)
    scores, sums = numbers(rng, (starts[-1], columns + 3)), np.abs(numbers(rng, (GROUPS, columns + 5)))
    expected = sums.copy()
    expected[:, 2:-3] = added(sums[:, 2:-3], np.abs(scores[:, 1:-2]), starts, groups, times)
    with using(form):
        sum_runs(Runs(starts, groups, times), scores[:, 1:-2], sums[:, 2:-3])
    assert sums.tobytes() == expected.tobytes()


@FORMS
@SOME
@given(seed=SEEDS, columns=COLUMNS)
def test_deviations_by_group(form, seed, columns):
    rng = np.random.default_rng(seed)
    starts, groups, times = drawn_runs(rng)
    scores, base = (numbers(rng, (n, columns + 1)).astype(np.float32) for n in (starts[-1], GROUPS))
    drift, sums = numbers(rng, (2, GROUPS, columns + 2)) + 0.0  # sums begin at 0.0, never at -0.0
    every = np.repeat(groups, np.diff(starts))
    whole = np.abs(scores[:, 1:] + base[every, :-1])  # in float32
    expected = drift.copy(), sums.copy()
    expected[0][:, 1:-1] = added(drift[:, 1:-1], scores[:, 1:], starts, groups, times)
    expected[1][:, 1:-1] = added(sums[:, 1:-1], whole, starts, groups, times)
    with using(form):
        runs = Runs(starts, groups, times)
        sum_deviations(runs, scores[:, 1:], base[:, :-1], drift[:, 1:-1], sums[:, 1:-1])
    assert (drift.tobytes(), sums.tobytes()) == (expected[0].tobytes(), expected[1].tobytes())
