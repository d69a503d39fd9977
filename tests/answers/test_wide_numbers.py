"""Numbers that NULLs stand beside come out of an answer as they were, whatever takes them."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy import ma

from dualform.answers import Columns, GroupSums, Hits

WIDE = 2**53 + 1
"""A whole number that no float64 has."""


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        ([WIDE, None, -WIDE], np.int64, pa.int64()),
        ([2**64 - 1, None, 0], np.uint64, pa.uint64()),
        ([7, None, -7], np.int32, pa.int32()),
        ([0.5, None, float("nan")], np.float32, pa.float32()),
        ([True, None, False], np.bool_, pa.bool_()),
        ([None, None, None], np.int64, pa.int64()),
    ],
    ids=["wide", "unsigned", "narrow", "floats", "flags", "nothing but NULL"],
)
def test_a_column_with_nulls_keeps_its_type_and_every_digit(values, dtype, kind):
    column = ma.array([value or 0 for value in values], dtype, mask=[value is None for value in values])
    given = Columns({"a": column})
    found = given.to_arrow()["a"]
    assert found.type == kind
    assert list(map(str, found.to_pylist())) == list(map(str, pl.DataFrame(given)["a"])) == list(map(str, values))
    frame = given.to_pandas()["a"]
    assert [None if own is None else str(own) for own in frame.astype(object).where(frame.notna(), None)] == [
        None if value is None or value != value else str(value) for value in values
    ]


def test_columns_without_nulls_are_plain_ones_of_pandas():
    frame = Columns({"a": ma.array([1, 2]), "b": np.array([0.5, 1.5], np.float32)}).to_pandas()
    assert (str(frame["a"].dtype), str(frame["b"].dtype)) == ("int64", "float32")


def test_groups_of_wide_numbers_keep_their_digits():
    sums = GroupSums(((WIDE,), (None,)), np.zeros((1, 2)), np.array([4, 5]), ("sample",))
    assert sums.to_pandas()["sample"].tolist() == [WIDE, pd.NA]


def test_an_answers_column_gives_way_to_each_of_a_users_names():
    hits = Hits(np.array([7]), np.array([3.0], np.float32), np.array([[1]]), ((5, 6),), ("rank", "rank_"))
    assert hits.table().records() == [{"query": 0, "rank__": 1, "rank": 5, "rank_": 6, "slot": 7, "score": 3.0}]


def test_hits_of_many_queries_are_iterated_without_splitting_those_of_all_for_each():
    """A minute for 5,000 queries, else."""
    split = []

    class Watched(Hits):
        def _split(self, column):
            split.append(len(self.counts))
            return super()._split(column)

    n = 50
    hits = Watched(np.arange(2 * n), np.arange(2 * n, dtype=np.float32), np.full((n, 1), 2))
    found = [*hits]
    assert sum(split) <= 2 * n
    assert [hit.slot for own in found for hit in own] == list(range(2 * n))
    assert [hit.rank for hit in found[-1]] == [1, 2]
