"""Sums of rows run by run have in every form the bits of additions one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dualform import kernels
from dualform.kernels.arguments import RowAddresses
from tests.kernels.forms import EXAMPLES, FORMS, using
from tests.kernels.rows import NUMBERS, WIDTHS

SOME = settings(max_examples=EXAMPLES, deadline=None)


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
