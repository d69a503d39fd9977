"""What an engine holds in memory is let go of with it, and at once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import dualform
from tests.store.small_memory import write

SIZES = [7, 5, 9, 4]
QUERIES = np.ones((1, 6), dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "run", SIZES)
    return tmp_path / "run"


@pytest.fixture
def collector_off():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ask(memory):
    best = memory.topk("layer-0", QUERIES, k=3).ids.tolist()
    return best, memory.group_sum("layer-0", QUERIES, by="dataset", where="step > 0", score="abs").sums.tolist()


def test_keys_go_with_the_engine_before_the_collector_looks(folder, collector_off):
    memory = dualform.open(folder)
    ask(memory)
    held = weakref.ref(memory._segments)
    del memory
    assert held() is None


def test_a_closed_engine_holds_nothing_and_can_be_asked(folder):
    memory = dualform.open(folder)
    before = ask(memory)
    assert memory._segments.nbytes
    memory.close()
    assert not memory._segments.nbytes
    assert not memory._view.cache.nbytes
    assert ask(memory) == before


def test_no_more_is_held_than_was_said(folder):
    memory = dualform.open(folder, held_bytes=0)
    assert ask(memory) == ask(dualform.open(memory.path))
    assert not memory._segments.nbytes
