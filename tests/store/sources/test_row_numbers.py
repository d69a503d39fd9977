"""Row numbers read as keys that are 1 at one place, in blocks that fit memory."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.query.score import canonical
from dualform.query.score.canonical import canonical_scores, score_pairs
from dualform.query.search import codes
from dualform.query.search.codes import quantise, quantise_source
from dualform.query.sums import key_sums
from dualform.query.sums.key_sums import KeySummer
from dualform.store.rows import Keys
from dualform.store.sources.key_format import HeldRows
from dualform.store.sources.row_numbers import OneHotRows, RowNumbers

WIDTH = 37


@pytest.fixture
def numbers():
    return np.random.default_rng(0).integers(0, WIDTH, 100)


@pytest.fixture
def source(numbers):
    made = RowNumbers(WIDTH, {})
    return made.source(HeldRows("numbers", 0, made.accepted(numbers)))


def test_any_rows(source, numbers):
    whole = np.eye(WIDTH, dtype=np.float32)[numbers]
    assert source.read(0, 100).tobytes() == whole.tobytes()
    assert source.read(13, 14).tobytes() == whole[13:14].tobytes()
    rows = np.array([99, 3, 3, 0])
    assert Keys([source], WIDTH, 100, None).take(rows).tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.array([0, WIDTH]), "its row numbers are 0 to 37, but it has only 37 rows"),
        (np.array([-1, 3]), "its row numbers are -1 to 3, but it has only 37 rows"),
        (np.array([1.0, 2.0]), r"its row numbers are float64\[2\], and must be integers"),
        (np.array([[1, 2]]), r"its row numbers are int64\[1, 2\], and must be integers"),
    ],
)
def test_what_is_no_row_number_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        RowNumbers(WIDTH, {}).accepted(given)


def test_no_more_rows_than_32_bits_number():
    RowNumbers(2**32, {})
    with pytest.raises(ValueError, match="more than 32 bits can number"):
        RowNumbers(2**32 + 1, {})


@pytest.fixture
def most(monkeypatch):
    """The number of rows of each matrix that is made."""
    made = []
    one_hot = OneHotRows._one_hot
    monkeypatch.setattr(OneHotRows, "_one_hot", lambda self, rows: made.append(len(rows)) or one_hot(self, rows))
    return made


def test_codes_are_made_block_by_block(source, most, monkeypatch):
    monkeypatch.setattr(codes, "_MADE_BYTES", 2 * 16 * 4 * WIDTH)
    found = quantise_source(source)
    assert most == [32, 32, 32, 4]
    wanted = quantise(source.read(0, 100))
    assert found.codes.tobytes() == wanted.codes.tobytes()
    assert found.numbers.tobytes() == wanted.numbers.tobytes()


def test_sums_of_wide_keys_are_made_column_range_by_column_range(source, monkeypatch):
    numbers = np.arange(100) % 7
    found = []
    for columns in (8192, 10):
        monkeypatch.setattr(key_sums, "_COLUMNS", columns)
        summer = KeySummer(7, WIDTH)
        summer.add(Keys([source], WIDTH, 100, None), np.arange(100), numbers, lambda: None)
        found.append(summer.sums().sums)
    wanted = np.zeros((7, WIDTH))
    np.add.at(wanted, numbers, source.read(0, 100))
    assert found[0].tobytes() == found[1].tobytes() == wanted.tobytes()


def test_rescoring_makes_no_more_rows_at_once_than_it_may_hold(source, numbers, most, monkeypatch):
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(4, WIDTH)).astype(np.float32)
    rows, query = rng.integers(0, [[100], [4]], (2, 500))
    monkeypatch.setattr(canonical, "HELD_BYTES", 30 * 4 * WIDTH)
    found = score_pairs(Keys([source], WIDTH, 100, None), rows, query, queries)
    whole = np.eye(WIDTH, dtype=np.float32)[numbers]
    assert found.tobytes() == canonical_scores(whole[rows], queries[query]).tobytes()
    assert max(most) <= 30
