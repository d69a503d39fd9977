"""The groups of a column's values, ranked in blocks, and which slots are of one sample."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import dualform
from dualform.query import groups
from dualform.query.groups import codes_of_texts, sample_numbers
from dualform.query.view import never
from tests.query.shards import memories


def test_numbers_that_are_none_are_one_group():
    column = np.array([np.nan, 1.0, np.nan, -1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_BLOCK", 1)
        codes, values = groups._codes(column, never)
    assert codes.tolist() == [2, 1, 2, 0]
    assert values[:2] == [-1.0, 1.0]
    assert len(values) == 3


TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["", "ü", "z", "Z", "\U0001f600", "\uffff", "é", "e\u0301"])))


@settings(deadline=None)
@given(chunks=st.lists(TEXTS, max_size=3))
def test_texts_have_the_ranks_and_values_that_python_gives_them(chunks):
    codes, values = codes_of_texts(pa.chunked_array(chunks, pa.string()), lambda: None)
    every = [text for chunk in chunks for text in chunk]
    known = [*sorted({text for text in every if text is not None}), *([None] if None in every else [])]
    assert codes.dtype == np.int64
    assert codes.tolist() == [known.index(text) for text in every]
    assert values == known


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    path = tmp_path_factory.mktemp("distinct") / "memory"
    memories.write(path, memories.SIZES)
    with dualform.open(path) as opened:
        yield opened


def test_rows_of_two_ranks_are_two_rows(memory, monkeypatch):
    view = memory._view
    space = view.snapshot.space("sample")
    nulls = space.is_null
    monkeypatch.setattr(space, "is_null", lambda name: name == "sample" or nulls(name))
    view.cache.clear()
    found = sample_numbers(view, view.snapshot.layer("plain"))
    assert found.unit == "rows"
    assert len(np.unique(found.numbers)) == sum(map(sum, memories.SIZES))
    view.cache.clear()


def test_slots_without_a_dataset_are_no_single_dataset(memory):
    k = sum(map(sum, memories.SIZES))
    query = memories.queries("plain", 1)
    hits, plain = memory.topk("plain", query, k=k, distinct="dataset"), memory.topk("plain", query, k=k)
    datasets = memory.slots(plain.ids)["dataset"]
    expected, seen = [], set()
    for slot, dataset in zip(plain.ids.tolist(), datasets, strict=True):
        if dataset is None or dataset not in seen:
            expected.append(slot)
        seen.add(dataset)
    assert hits.ids.tolist() == expected
    assert hits.repeats.sum() == k


def test_a_sample_without_a_dataset_is_one_sample(memory):
    k = sum(map(sum, memories.SIZES))
    hits = memory.topk("plain", memories.queries("plain", 1), k=k, distinct="sample")
    assert len(hits.ids) == len(set(zip(*(hits.joined(memory)[name] for name in ("dataset", "sample")), strict=True)))
