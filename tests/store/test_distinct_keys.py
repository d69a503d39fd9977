"""Each distinct key is one row, bit for bit, wherever its digest is remembered."""

from __future__ import annotations

import struct
from unittest import mock

import numpy as np
import pytest
import xxhash
from hypothesis import given, strategies as st

from dualform.store.writing import rows_writer
from dualform.store.writing.rows_writer import DistinctKeys


def rows_by_dictionary(batches):
    known, wanted = {}, []
    for keys in batches:
        first = len(known)
        rows = [known.setdefault(key.tobytes(), len(known)) for key in keys]
        wanted.append((rows, [rows.index(row) for row in range(first, len(known))]))
    return wanted


@given(
    batches=st.lists(st.lists(st.integers(0, 30), max_size=9), max_size=12),
    recent=st.sampled_from([1, 3, 1000]),
    firsts=st.sampled_from([1, 3, 1 << 60]),
)
def test_rows_are_those_of_a_dictionary(batches, recent, firsts):
    """Also where the first halves of digests are the same of many keys."""

    def digest(content):
        number = int.from_bytes(xxhash.xxh3_64_digest(content), "little")
        return struct.pack("<QQ", number % firsts, number)

    arrays = [np.array(keys, dtype=np.float32)[:, None] * [1, -1] for keys in batches]
    with mock.patch.object(rows_writer, "_RECENT", recent), mock.patch.object(xxhash, "xxh3_128_digest", digest):
        own = DistinctKeys()
        found = [own.rows_of(keys) for keys in arrays]
    assert [(rows.tolist(), new) for rows, new in found] == rows_by_dictionary(arrays)


def test_zero_and_minus_zero_are_two_keys():
    rows, new = DistinctKeys().rows_of(np.array([[0.0], [-0.0], [0.0]], dtype=np.float32))
    assert (rows.tolist(), new) == ([0, 1, 0], [0, 1])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_keys_may_have_no_numbers(shape):
    rows, new = DistinctKeys().rows_of(np.zeros(shape, dtype=np.float32))
    assert (rows.tolist(), new) == ([0] * shape[0], [0] if shape[0] else [])


def test_keys_are_forgotten_beyond_a_number_of_them(monkeypatch):
    monkeypatch.setattr(rows_writer, "_MOST_REMEMBERED", 10)
    monkeypatch.setattr(rows_writer, "_RECENT", 4)
    own, keys = DistinctKeys(), np.arange(15, dtype=np.float32)[:, None]
    assert own.rows_of(keys)[1] == list(range(15))
    rows, new = own.rows_of(keys)
    assert rows[:10].tolist() == list(range(10)), "what is remembered"
    assert rows[10:].tolist() == [15, 16, 17, 18, 19], "what is stored a second time"
    assert new == [10, 11, 12, 13, 14]
