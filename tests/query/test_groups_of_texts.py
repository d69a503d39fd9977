"""Texts are ranked by Arrow as Python ranks them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from dualform.query.groups import _text_codes, codes_of_texts

TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["", "ü", "z", "Z", "\U0001f600", "\uffff", "é", "e\u0301"])))


@settings(deadline=None)
@given(chunks=st.lists(TEXTS, max_size=3))
def test_texts_have_the_ranks_and_values_that_python_gives_them(chunks):
    codes, values = codes_of_texts(pa.chunked_array(chunks, pa.string()), lambda: None)
    expected, known = _text_codes(np.array([text for chunk in chunks for text in chunk], dtype=object), lambda: None)
    assert codes.dtype == expected.dtype
    assert codes.tolist() == expected.tolist()
    assert values == known
