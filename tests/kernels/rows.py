"""Rows that loops are tried with."""

from __future__ import annotations

from hypothesis import strategies as st

NUMBERS = st.one_of(st.floats(-4, 4, width=32), st.sampled_from([0.0, -0.0, 1e-30, 3e11, -1e13, 1e20, 2.0**-149]))
WIDTHS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 130]))
