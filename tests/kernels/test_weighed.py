"""Sums of weighed rows, and the sizes of scores' terms, have in every form the bits of arithmetic step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from dualform.kernels.arguments import RowAddresses
from tests.kernels.forms import EXAMPLES, FORMS, using
from tests.kernels.rows import NUMBERS, WIDTHS

SOME = settings(max_examples=EXAMPLES, deadline=None)
WEIGHTS = st.one_of(st.floats(-4, 4), st.sampled_from([0.0, -0.0, 1e-300, 1e12, -1e-12]))
LINE, JOINED = 16, 64


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


@FORMS
@SOME
@given(weighed_rows())
def test_weighed_rows(form, given_rows):
    rows, weights, sizes, before = given_rows
    found, expected = before.copy(), before.copy()
    with using(form):
        kernels.weigh(RowAddresses.of(rows), weights, sizes, *found)
    weighed(rows.astype(np.float64), weights, sizes, *expected)
    assert found.tobytes() == expected.tobytes()
