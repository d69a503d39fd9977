"""Products of factors that are known up to an error have in every form the bits of float32 arithmetic step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from tests.kernels.forms import EXAMPLES, FORMS, using
from tests.kernels.rows import NUMBERS


@st.composite
def pairs(draw):
    count = draw(st.one_of(st.integers(0, 40), st.sampled_from([255, 1000])))
    found = draw(hnp.arrays(np.float32, (6, count), elements=NUMBERS, fill=st.sampled_from([0.0, 0.5])))
    found[[1, 3, 5]] = np.abs(found[[1, 3, 5]])
    return found, np.float32(draw(st.floats(0, 2, width=32)))


@FORMS
@settings(max_examples=EXAMPLES, deadline=None)
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
