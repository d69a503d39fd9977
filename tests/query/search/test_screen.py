"""What the screen is asked about, and what it leaves, compiled or on a device. That it loses none: tests/kernels."""

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
from dualform.query.score import canonical
from dualform.query.score.backends import torch as torch_file
from dualform.query.score.backends.torch import DeviceCopies, DeviceScreen, TorchBackend
from dualform.query.score.canonical import canonical_scores, score_pairs
from dualform.query.search.codes import (
    WIDEST,
    Codes,
    CodesCache,
    quantise,
    quantise_queries,
)
from dualform.query.search.screen import CompiledScreen, Request
from dualform.store.rows import Keys
from dualform.store.sources.key_format import HeldRows
from tests.kernels.test_loops import assert_best_are_candidates, keys_of, questions
from tests.query import arrays
from tests.query.test_backends import SETTINGS


def test_equal_keys_are_answered_without_the_screen():
    keys = np.ones((30_000, 8), np.float32)
    memory = arrays.engine(arrays.memory({"0": keys}, {"label": [0] * 30_000}), "int8")
    hits = memory.topk("0", np.ones((1, 8), np.float32), k=3)
    assert hits.slots[0].tolist() == [0, 1, 2]
    assert (memory.tally.queries, memory.tally.fallbacks) == (1, 1)


def test_keys_too_wide_for_32_bits_are_not_screened():
    keys = np.zeros((8, WIDEST + 1), np.float32)
    keys[np.arange(8), np.arange(8)] = np.arange(8)
    memory = arrays.engine(arrays.memory({"0": keys}, {"label": [0] * 8}), "int8")
    assert memory.topk("0", np.ones((1, WIDEST + 1), np.float32), k=1).slots[0].tolist() == [7]
    assert (memory.tally.queries, memory.tally.fallbacks) == (1, 1)


def test_sums_of_the_greatest_codes_do_not_overflow():
    keys, query = np.zeros((600, WIDEST), np.float32), np.ones((1, WIDEST), np.float32)
    keys[:, 1:] = 1.0
    keys[17] = 1.0
    screen, request = CompiledScreen(CodesCache(1 << 30)), Request(1, 1, None, False)
    found = screen.candidates(arrays.keys_of(keys, 600), query, request, lambda: None)
    assert 17 in found.rows.tolist()


@pytest.mark.parametrize("columns", [1, 2])
def test_codes_of_queries_say_how_much_they_leave_out(columns, rng):
    queries = (rng.normal(size=(9, 30)) * 10.0 ** rng.integers(-9, 9, size=(9, 1))).astype(np.float32)
    coded = quantise_queries(queries, columns)
    scale, fine, sums, length, residual, _ = coded.numbers.astype(float)
    flat = coded.codes.transpose(0, 2, 1, 3).reshape(-1, coded.codes.shape[1] * 4)[: 9 * columns, :30].astype(float)
    near = scale[:, None] * flat[::columns] + (fine[:, None] * flat[1::2] if columns == 2 else 0.0)
    assert np.all(np.linalg.norm(queries - near, axis=1) <= residual)
    assert np.all(np.linalg.norm(queries.astype(float), axis=1) <= length)
    assert np.allclose(
        sums, queries.astype(float).sum(axis=1), rtol=1e-6, atol=1e-6 * np.abs(queries).sum(axis=1).max()
    )
    finer = kernels.greatest() / 127  # processors without products of whole bytes have coarser codes
    assert np.all(residual < length / (100 * finer if columns == 1 else 20_000 * finer**2))


def test_rescoring_holds_no_more_segments_than_it_may(monkeypatch, rng):
    keys = rng.normal(size=(60, 30)).astype(np.float32)
    queries, (rows, query) = rng.normal(size=(3, 30)).astype(np.float32), rng.integers(0, [[60], [3]], (2, 900))
    made = list[weakref.ref[np.ndarray]]()
    most = 0

    class Uncached(HeldRows):
        """Rows of which nothing else holds a copy, as of a segment that the cache has no room for."""

        def holding(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            nonlocal most
            matrix = self.content.copy()
            made.append(weakref.ref(matrix))
            most = max(most, sum(one().nbytes for one in made if one() is not None))
            return matrix, rows

    sources = [Uncached(start, start, keys[start : start + 10]) for start in range(0, 60, 10)]
    monkeypatch.setattr(canonical, "HELD_BYTES", 2 * 10 * 30 * 4)
    found = score_pairs(Keys(sources, 30, 60, None), rows, query, queries)
    assert found.tobytes() == canonical_scores(keys[rows], queries[query]).tobytes()
    assert most == 2 * 10 * 30 * 4
    assert len(made) == 6, "each is read once"


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("width", [1, 4, 5, 33])
def test_the_size_of_codes_is_known_before_they_are_made(rows, width):
    assert Codes.bytes_of(rows, width) == quantise(np.ones((rows, width), np.float32)).nbytes


def test_arguments_keep_their_arrays_alive():
    codes = quantise(np.ones((3, 8), np.float32))
    argument, alive = codes.as_argument(0, None), weakref.ref(codes.codes)
    address = argument.codes
    del codes
    gc.collect()
    assert alive() is not None
    assert alive().ctypes.data == address


LOOPS = pytest.mark.skipif(kernels.library() is None, reason="the loops, which make codes, are not compiled")


def device_screen(room: int = 1 << 30) -> DeviceScreen:
    return DeviceScreen(torch, "cpu", lambda: room, CodesCache(1 << 20))


@LOOPS
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
        found = device_screen(room).candidates(keys_of(keys, segment_rows), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


@LOOPS
def test_on_a_device_rows_that_cannot_be_among_the_best_are_left_out(rng):
    keys, queries = rng.normal(size=(5000, 64)).astype(np.float32), rng.normal(size=(30, 64)).astype(np.float32)
    found = device_screen().candidates(keys_of(keys, 1000), queries, Request(5, 1, None, True), lambda: None)
    assert len(found.rows) < 30 * 60


@LOOPS
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_no_setting_of_torch_loses_a_row(rng, setting):
    """Codes of these keys leave nothing out, so that the bounds are close: rounding a floor up would lose rows."""
    keys, queries = rng.integers(0, 256, (4000, 16)).astype(np.float32), rng.integers(-1, 2, (20, 16))
    keys[:, 0], keys[:, 1], queries[:, 2] = 0, 255, 1
    queries, request = queries.astype(np.float32), Request(7, 1, None, False)
    with SETTINGS[setting]():
        found = device_screen().candidates(keys_of(keys, 1000), queries, request, lambda: None)
    assert_best_are_candidates(found, keys, queries, request)


@LOOPS
def test_on_a_device_more_candidates_than_are_worth_it_are_said_to_be_crowded():
    keys = np.ones((30_000, 8), np.float32)
    found = device_screen().candidates(keys_of(keys, 10_000), keys[:2], Request(3, 1, None, False), lambda: None)
    assert found.crowded.all()
    assert not len(found.rows)


ALONG = {"k": 4, "score": "contribution", "allow_inexact": True}
WEIGHED = [
    {"k": 6, "score": "cosine"},
    ALONG | {"target": 1, "by": "label"},
    ALONG | {"target": np.arange(10, dtype=np.float32).reshape(5, 2)},
]


@LOOPS
@pytest.mark.parametrize("room", [0, 1 << 40])
def test_answers_are_those_of_any_backend(room, rng):
    keys = rng.normal(size=(3000, 18)).astype(np.float32)
    values, start = rng.normal(size=(3000, 2)).astype(np.float32), {"0.weight": np.zeros((2, 18), np.float32)}
    columns = {"label": [i % 3 for i in range(3000)]}
    memory = arrays.memory({"0": keys}, columns, values={"0": values}, initial=start, final=start, biases=False)
    engine, expected = Engine(memory, TorchBackend(room=lambda: room)), arrays.engine(memory)
    for named in ({"k": 7}, {"k": 3, "by": "label", "score": "abs"}, {"k": 5, "where": "label <> 1"}, *WEIGHED):
        for _ in range(2):
            ours, theirs = (one.topk("0", keys[:5], **named) for one in (engine, expected))
            for mine, right in zip(ours.slots, theirs.slots, strict=True):
                np.testing.assert_array_equal(np.concatenate(mine, None), np.concatenate(right, None))
            for mine, right in zip(ours.scores, theirs.scores, strict=True):
                np.testing.assert_array_equal(np.concatenate(mine, None), np.concatenate(right, None))
    assert engine.tally.fallbacks == 0
    assert engine.tally.candidates > 0


@LOOPS
def test_what_is_kept_on_the_device_is_let_go_when_the_memory_is_closed(rng):
    keys = rng.normal(size=(3000, 18)).astype(np.float32)
    backend = TorchBackend(room=lambda: 1 << 40)
    engine = Engine(arrays.memory({"0": keys}, {"label": [0] * 3000}), backend)
    before = engine.topk("0", keys[:5], k=7)
    copies = [weakref.ref(codes) for codes, _ in backend.screen._held.values()]
    assert copies
    for _ in range(3):  # one copy of each source, however often it is asked
        engine.topk("0", keys[:5], k=7)
    assert len(backend.screen._held) == len(copies)
    engine.close()
    gc.collect()
    assert [copy() for copy in copies] == [None] * len(copies)
    assert backend.screen.codes.nbytes == 0
    assert engine.topk("0", keys[:5], k=7).ids.tobytes() == before.ids.tobytes()


@LOOPS
def test_threads_that_ask_and_close_at_once_get_the_same_answers(rng):
    keys = rng.normal(size=(2000, 18)).astype(np.float32)
    engine = Engine(arrays.memory({"0": keys}, {"label": [0] * 2000}), TorchBackend(room=lambda: 1 << 40))
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


class Device:
    def __init__(self, room: int) -> None:
        self.room, self.uploads = room, 0

    def upload(self, block):
        self.uploads += 1
        self.room -= block.nbytes
        return block.copy()

    def copies(self) -> DeviceCopies:
        return DeviceCopies(self.upload, lambda: self.room)


def test_a_copy_goes_with_its_block():
    device, keys = Device(1 << 20), np.ones((100, 8), np.float32)
    copies = device.copies()
    copies.get(keys[:10])
    copies.get(keys[10:])
    del keys
    gc.collect()
    assert len(copies) == 0
