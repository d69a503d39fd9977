"""Where rows lie in memory: what stands at an address is the row, whichever source, order or form it comes from."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given, strategies as st

from dualform.store.reading.stored_layers import some_columns
from dualform.store.rows import OrderedRows, Rows
from dualform.store.sources.key_format import HeldRows

WIDTH = 5


@st.composite
def matrices(draw):
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    matrix = np.random.default_rng(0).normal(size=(sum(lengths), WIDTH)).astype(np.float32)
    firsts = np.cumsum([0, *lengths])
    sources = [
        HeldRows(("rows", first), first, matrix[first : first + length])
        for first, length in zip(firsts.tolist(), lengths, strict=False)
    ]
    wanted = draw(st.lists(st.integers(0, len(matrix) - 1), max_size=12))
    return matrix, sources, np.array(wanted, np.int64)


def rows_at(addresses, width):
    return [ctypes.string_at(address, 4 * width) for address in addresses.tolist()]


@given(matrices(), st.randoms(use_true_random=False))
def test_rows_stand_at_their_addresses(given_rows, random):
    matrix, sources, wanted = given_rows
    order = np.array(random.sample(range(len(matrix)), len(matrix)), np.int64)
    narrow = [some_columns(source, 1, 4) for source in sources]
    for rows in (Rows(sources, WIDTH), OrderedRows(sources, WIDTH, order), Rows(narrow, 3)):
        addresses = rows.addresses(wanted)
        assert rows_at(addresses.numbers, rows.width) == [row.tobytes() for row in rows.take(wanted)]
