"""Sums of rows, of scores and of products by group have in every form the bits of additions one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from dualform.kernels.arguments import RowAddresses, Runs
from dualform.kernels.sums import sum_deviations, sum_runs
from tests.kernels.forms import EXAMPLES, FORMS, using

SOME = settings(max_examples=EXAMPLES, deadline=None)
NUMBERS = st.one_of(st.floats(-4, 4, width=32), st.sampled_from([0.0, -0.0, 1e-30, 3e11, -1e13, 1e20, 2.0**-149]))
WIDTHS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 130]))
WEIGHTS = st.one_of(st.floats(-4, 4), st.sampled_from([0.0, -0.0, 1e-300, 1e12, -1e-12]))
SEEDS, COLUMNS = st.integers(0, 1000), st.sampled_from([1, 7, 255, 256, 257, 530])
GROUPS, LINE, JOINED = 5, 16, 64


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


@st.composite
def runs_of_rows(draw):
    count, width = draw(st.integers(1, 30)), draw(WIDTHS)
    rows = draw(hnp.arrays(np.float32, (count, width), elements=NUMBERS, fill=st.sampled_from([-0.0, 0.5])))
    starts = {0, *draw(st.sets(st.integers(0, count - 1)))}
    return rows, np.array(sorted(starts), np.int64)


@FORMS
@SOME
@given(runs_of_rows())
def test_runs_of_rows_are_added_in_order(form, given_rows):
    rows, starts = given_rows
    with using(form):
        sums, least, most = kernels.add_runs(RowAddresses.of(rows), starts)
    for run, part in enumerate(np.split(rows, starts[1:])):
        expected = part[0].astype(np.float64)
        for row in part[1:]:
            expected += row
        assert sums[run].tobytes() == expected.tobytes()
        assert (least[run], most[run]) == (min(part.min(), 0), max(part.max(), 0))


def size(key, query):
    """In float32: sixteen sums, whatever is past the last whole sixteen joins the first, then halves."""
    products = np.abs(key * query)
    sums = np.zeros(LINE, np.float32)
    whole = len(key) // LINE * LINE
    for start in range(0, whole, LINE):
        sums += products[start : start + LINE]
    for product in products[whole:]:
        sums[0] += product
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return sums[0]


@st.composite
def keys_and_query(draw):
    width = draw(WIDTHS)
    keys = draw(hnp.arrays(np.float32, (draw(st.integers(0, 20)), width), elements=NUMBERS))
    return keys, draw(hnp.arrays(np.float32, width, elements=NUMBERS))


@FORMS
@SOME
@given(keys_and_query())
def test_sizes_of_terms(form, given_keys):
    keys, query = given_keys
    with using(form), np.errstate(over="ignore"):
        found = kernels.sizes(RowAddresses.of(keys), query)
        expected = np.array([size(key, query) for key in keys], np.float32)
        assert found.tobytes() == expected.tobytes()
        exact = np.abs(keys.astype(np.float64) * query).sum(axis=1)
        assert (np.isinf(found) | (found * (1 + 2.0**-20 * len(query)) + 1e-30 * len(query) >= exact)).all()


def weighed(rows, weights, sizes, found, lost, terms):
    """Four rows at a time join a sum of 64; that joins what was found, and what rounding lost of it is kept."""
    for first in range(0, len(rows), JOINED):
        own, last = np.zeros(rows.shape[1]), min(first + JOINED, len(rows))
        four = first + (last - first) // 4 * 4
        for r in range(first, four, 4):
            for total, parts in (
                (own, weights[r : r + 4, None] * rows[r : r + 4]),
                (terms, sizes[r : r + 4, None] * np.abs(rows[r : r + 4])),
            ):
                total += (parts[0] + parts[1]) + (parts[2] + parts[3])
        for r in range(four, last):
            own += weights[r] * rows[r]
            terms += sizes[r] * np.abs(rows[r])
        summed = found + own
        taken = summed - found
        lost += (found - (summed - taken)) + (own - taken)
        found[:] = summed


@st.composite
def weighed_rows(draw):
    count, width = draw(st.one_of(st.integers(0, 12), st.sampled_from([63, 64, 65, 130]))), draw(WIDTHS)
    rows = draw(hnp.arrays(np.float32, (count, width), elements=NUMBERS, fill=st.sampled_from([0.0, 0.5])))
    numbers = hnp.arrays(np.float64, count, elements=WEIGHTS)
    return rows, draw(numbers), np.abs(draw(numbers)), draw(hnp.arrays(np.float64, (3, width), elements=WEIGHTS))


def assert_weighed(form, rows, weights, sizes, before):
    found, expected = before.copy(), before.copy()
    with using(form):
        kernels.weigh(RowAddresses.of(rows), weights, sizes, *found)
    weighed(rows.astype(np.float64), weights, sizes, *expected)
    assert found.tobytes() == expected.tobytes()


@FORMS
@SOME
@given(weighed_rows())
def test_weighed_rows(form, given_rows):
    assert_weighed(form, *given_rows)


@st.composite
def pairs(draw):
    count = draw(st.one_of(st.integers(0, 40), st.sampled_from([255, 1000])))
    found = draw(hnp.arrays(np.float32, (6, count), elements=NUMBERS, fill=st.sampled_from([0.0, 0.5])))
    found[[1, 3, 5]] = np.abs(found[[1, 3, 5]])
    return found, np.float32(draw(st.floats(0, 2, width=32)))


@FORMS
@SOME
@given(pairs())
def test_products_and_their_errors(form, drawn):
    (left, e_left, right, e_right, middle, off), shift = drawn
    with np.errstate(all="ignore"):
        own = left + shift
        expected = middle + own * right, off + (np.abs(own) * e_right + (np.abs(right) + e_right) * e_left)
    with using(form):
        kernels.add_pairs(left, e_left, right, e_right, float(shift), middle, off)
    assert middle.tobytes() == expected[0].tobytes()
    assert off.tobytes() == expected[1].tobytes()
