"""The groups of a column's values, ranked in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.query import groups
from dualform.query.view import never

VALUES = [
    st.integers(-3, 3),
    st.sampled_from([0.5, -1.0, 2.0**60, float("inf")]),
    st.booleans(),
    st.sampled_from(["a", "b", "", "\u00e9"]),
]


@given(data=st.data(), size=st.integers(1, 7))
@settings(deadline=None, max_examples=20)
def test_blocks_of_any_size_give_the_ranks_of_the_whole_column(data, size):
    listed = data.draw(st.lists(st.none() | data.draw(st.sampled_from(VALUES)), max_size=20))
    column = np.array(listed, dtype=object)
    known = [value for value in listed if value is not None]
    if not any(isinstance(value, str) for value in known):
        filled = np.array([0 if value is None else value for value in listed])
        column = np.ma.MaskedArray(filled, mask=[value is None for value in listed])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_BLOCK", size)
        codes, values = groups._codes(column, never)
    assert values == sorted(set(known)) + [None] * (None in listed)
    assert [values[code] for code in codes.tolist()] == listed


def test_numbers_that_are_none_are_one_group():
    column = np.array([np.nan, 1.0, np.nan, -1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_BLOCK", 1)
        codes, values = groups._codes(column, never)
    assert codes.tolist() == [2, 1, 2, 0]
    assert values[:2] == [-1.0, 1.0]
    assert len(values) == 3
