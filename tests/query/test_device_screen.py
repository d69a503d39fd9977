"""The screen by torch on a device, here the processor: it loses none of the best, and answers as any backend."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform import kernels
from dualform.query.engine import Engine
from dualform.query.score.backends import torch as torch_file
from dualform.query.score.backends.torch import DeviceScreen, TorchDeviceBackend
from dualform.query.search.codes import CodesCache
from dualform.query.search.screen import Request
from tests.kernels.test_loops import assert_best_are_candidates, keys_of, questions
from tests.query import arrays
from tests.query.test_backends import SETTINGS

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the loops, which make codes, are not compiled")


def screen(room: int = 1 << 30) -> DeviceScreen:
    return DeviceScreen(torch, "cpu", lambda: room, CodesCache(1 << 20))


@settings(max_examples=13, deadline=None)
@given(
    question=questions(),
    segment_rows=st.sampled_from([16, 33, 100]),
    room=st.sampled_from([0, 1 << 30]),
    at_once=st.sampled_from([1, 1 << 24]),
)
def test_every_one_of_the_k_best_is_a_candidate(question, segment_rows, room, at_once):
    keys, queries, request = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_file, "_AT_ONCE", at_once)
        found = screen(room).candidates(keys_of(keys, segment_rows), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


def test_rows_that_cannot_be_among_the_best_are_left_out(rng):
    keys, queries = rng.normal(size=(5000, 64)).astype(np.float32), rng.normal(size=(30, 64)).astype(np.float32)
    found = screen().candidates(keys_of(keys, 1000), queries, Request(5, 1, None, True), lambda: None)
    assert len(found.rows) < 30 * 60


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_no_setting_of_torch_loses_a_row(rng, setting):
    """Codes of these keys leave nothing out, so that the bounds are close: rounding a floor up would lose rows."""
    keys, queries = rng.integers(0, 256, (4000, 16)).astype(np.float32), rng.integers(-1, 2, (20, 16))
    keys[:, 0], keys[:, 1], queries[:, 2] = 0, 255, 1
    queries, request = queries.astype(np.float32), Request(7, 1, None, False)
    with SETTINGS[setting]():
        found = screen().candidates(keys_of(keys, 1000), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


def test_more_candidates_than_are_worth_it_are_said_to_be_crowded():
    keys = np.ones((30_000, 8), np.float32)
    found = screen().candidates(keys_of(keys, 10_000), keys[:2], Request(3, 1, None, False), lambda: None)
    assert found.crowded.all()
    assert not len(found.rows)


@pytest.mark.parametrize("room", [0, 1 << 40])
def test_answers_are_those_of_any_backend(room, rng):
    keys = rng.normal(size=(3000, 18)).astype(np.float32)
    memory = arrays.memory({"0": keys}, {"label": [i % 3 for i in range(3000)]})
    engine, expected = Engine(memory, TorchDeviceBackend("cpu", lambda: room)), arrays.engine(memory)
    for named in ({"k": 7}, {"k": 3, "by": "label", "score": "abs"}, {"k": 5, "where": "label <> 1"}):
        for _ in range(2):
            ours, theirs = (one.topk("0", keys[:5], **named) for one in (engine, expected))
            for mine, right in zip(ours.slots, theirs.slots, strict=True):
                np.testing.assert_array_equal(np.concatenate(mine, None), np.concatenate(right, None))
            for mine, right in zip(ours.scores, theirs.scores, strict=True):
                np.testing.assert_array_equal(np.concatenate(mine, None), np.concatenate(right, None))
    assert engine.tally.fallbacks == 0
    assert engine.tally.candidates > 0


def test_what_is_kept_on_the_device_is_let_go_when_the_memory_is_closed(rng):
    keys = rng.normal(size=(3000, 18)).astype(np.float32)
    backend = TorchDeviceBackend("cpu", lambda: 1 << 40)
    engine = Engine(arrays.memory({"0": keys}, {"label": [0] * 3000}), backend)
    before = engine.topk("0", keys[:5], k=7)
    copies = [weakref.ref(own.codes) for own in backend.screen._held.values()]
    assert copies
    for _ in range(3):  # one copy of each source, however often it is asked
        engine.topk("0", keys[:5], k=7)
    assert len(backend.screen._held) == len(copies)
    engine.close()
    gc.collect()
    assert [copy() for copy in copies] == [None] * len(copies)
    assert backend.screen.codes.nbytes == 0
    assert engine.topk("0", keys[:5], k=7).ids.tobytes() == before.ids.tobytes()


def test_threads_that_ask_and_close_at_once_get_the_same_answers(rng):
    keys = rng.normal(size=(2000, 18)).astype(np.float32)
    engine = Engine(arrays.memory({"0": keys}, {"label": [0] * 2000}), TorchDeviceBackend("cpu", lambda: 1 << 40))
    before, found = engine.topk("0", keys[:5], k=7).ids.tobytes(), []

    def ask():
        for _ in range(10):
            found.append(engine.topk("0", keys[:5], k=7).ids.tobytes() == before)
            engine.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40
