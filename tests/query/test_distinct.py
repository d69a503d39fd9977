"""Which slots are of one sample, where samples are numbered by rows or by a column that is NULL in places."""

from __future__ import annotations

import numpy as np
import pytest

import dualform
from dualform.query.groups import sample_numbers
from tests.query.shards import memories


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
