"""Questions that share scans: each asker gets the bits that it would have got alone, over gRPC as well, and nobody ends
another's work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dualform
from dualform.answers import Scan
from dualform.errors import BadInput, BadMask, Cancelled, Damaged, DualformError
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import GroupSum, Output, QuerySetExamples, SlotKeys, TopK, Vectors
from dualform_client import Client
from dualform_service import servicer
from dualform_service.scheduling import Asker as Who
from dualform_service.server import Server
from dualform_service.servicer import Question, parts
from dualform_service.settings import ServiceConfig
from tests.service.held_engine import (
    Asker,
    answer,
    batches as batches,
    crowd,
    engine as engine,
    numbers,
    same,
    until,
)
from tests.store import small_memory

KINDS = [
    (lambda query: TopK("fc", Vectors(np.full((1, 3), query))), [1, 19]),
    (lambda query: TopK("fc", QuerySetExamples("test", (query, query + 1))), [2, 38]),
    (lambda query: TopK("fc", SlotKeys((query,)), by=("label",)), [1, 19]),
    (lambda query: GroupSum("fc", QuerySetExamples("test", (query,)), ("label",)), [1, 19]),
    (lambda query: Output("fc", Vectors(np.full((2, 3), query)), at_step=3), [2, 38]),
    (lambda query: Output("fc", Vectors(np.full((1, 3), query)), kernel="softmax"), [1, 16, 3]),
    (lambda query: TopK("fc", QuerySetExamples("test", (1,) * 10)), [10, 120, 70]),
]
"""The question of a number, and the queries of each scan of 20: no scan takes more than it may, of a softmax few."""


@pytest.mark.parametrize(("kind", "scans"), KINDS)
def test_those_who_come_while_a_scan_is_under_way_share_the_next(engine, batches, kind, scans):
    questions = [kind(query) for query in range(20)]
    askers = crowd(engine, batches, questions)
    engine.go.set()
    for asker, question in zip(askers, questions, strict=True):
        asker.join()
        assert same(asker.outcome, answer(question, Scan()))
    assert [len(numbers(one)) for one in engine.asked] == scans


def test_those_who_shared_a_scan_share_the_next_if_they_ask_again_at_once(engine, batches, monkeypatch):
    """However busy the machine is: the time for which they are waited for is drawn out, in proportion."""
    for name, factor in (("LINGER", 1e3), ("LINGER_SHARE", 1e6)):
        monkeypatch.setattr(servicer, name, factor * getattr(servicer, name))
    question = TopK("fc", QuerySetExamples("test", (1,)))
    askers = crowd(engine, batches, [question] * 3)
    engine.go.set()
    for asker in askers:
        asker.join()
    assert engine.begun.acquire(timeout=60)
    again = [Asker(batches, question)]
    assert not engine.begun.acquire(timeout=0.2), "it waits for the other"
    again.append(Asker(batches, question))
    for asker in again:
        asker.join()
    assert [len(numbers(one)) for one in engine.asked] == [1, 2, 2]


OTHERS = [
    TopK("fc", Vectors(np.zeros((1, 3)))),
    TopK("fc", Vectors(np.zeros((1, 4)))),
    TopK("other", Vectors(np.zeros((1, 3)))),
    TopK("fc", Vectors(np.zeros((1, 3))), k=11),
    TopK("fc", Vectors(np.zeros((1, 3))), where="label = 3"),
    TopK("fc", Vectors(np.zeros((1, 3))), where="label = 4"),
    TopK("fc", Vectors(np.zeros((1, 3))), by=("label",)),
    TopK("fc", Vectors(np.zeros((1, 3))), score="abs"),
    TopK("fc", QuerySetExamples("test", (0,))),
    TopK("fc", QuerySetExamples("train", (0,))),
    TopK("fc", SlotKeys((0,))),
    GroupSum("fc", Vectors(np.zeros((1, 3))), ("label",)),
    GroupSum("fc", Vectors(np.zeros((1, 3))), ("label", "dataset")),
    Output("fc", Vectors(np.zeros((1, 3)))),
    Output("fc", Vectors(np.zeros((1, 3))), at_step=0),
    Output("fc", Vectors(np.zeros((1, 3))), initial=False),
    Output("fc", Vectors(np.zeros((1, 3))), kernel="softmax"),
    Output("fc", Vectors(np.zeros((1, 3))), kernel="softmax", temperature=2.0),
]


def test_questions_that_differ_in_anything_but_their_queries_are_of_different_kinds():
    kinds = [question.kind for question in OTHERS]
    assert len(set(kinds)) == len(OTHERS)
    assert kinds == [replace(question).kind for question in OTHERS]


def test_a_whole_query_set_is_of_no_kind():
    assert TopK("fc", QuerySetExamples("test")).kind is None


def test_of_kinds_that_nobody_knows_yet_one_is_scanned_at_once_and_two_that_rebuild_outputs(engine, batches):
    askers = [Asker(batches, question) for question in OTHERS]
    for _ in range(3):
        assert engine.begun.acquire(timeout=60)
    until(lambda: batches.waiting() == len(OTHERS) - 3)
    assert sorted(isinstance(one, Output) for one in engine.asked) == [False, True, True]
    engine.go.set()
    for asker in askers:
        asker.join()
        assert not isinstance(asker.outcome, DualformError)


def test_a_question_that_joins_a_kind_waits_in_its_own_turn_as_well(engine, batches):
    """Of the two threads that rebuild, the one who asked first may have one alone, and the other asker the other."""
    alice, bob = Who("alice", half=True), Who("bob", half=True)
    first = Asker(batches, Output("fc", QuerySetExamples("test", (1,)), where="slot <> 0"), alice)
    assert engine.begun.acquire(timeout=60)
    kind = Output("fc", QuerySetExamples("test", (2,)), where="slot <> 1")
    waits = Asker(batches, kind, alice)
    until(lambda: batches.lanes.heavy.waiting == 1)
    joins = Asker(batches, kind, bob)
    assert engine.begun.acquire(timeout=10), "bob's thread is free"
    assert len(engine.asked) == 2
    assert batches.lanes.heavy.waiting == 0
    engine.go.set()
    for asker in (first, waits, joins):
        asker.join()
        assert asker.outcome.values.shape == (1, 2)


@pytest.mark.parametrize("batches", [64], indirect=True)
def test_a_scan_takes_no_more_queries_than_their_answers_leave_room_for(engine, batches):
    # Sums of two groups take 16 bytes a query, which the first answer tells.
    askers = crowd(engine, batches, [GroupSum("fc", QuerySetExamples("test", (1,)), ("label",)) for _ in range(1 + 10)])
    engine.go.set()
    for asker in askers:
        asker.join()
    assert [len(numbers(one)) for one in engine.asked] == [1, 4, 4, 2]


def test_one_askers_error_is_nobody_elses(engine, batches):
    rows = [1, *range(30), 99, *range(30, 50), 99]
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,))) for row in rows])
    engine.go.set()
    for asker, row in zip(askers, rows, strict=True):
        asker.join()
        if row == 99:
            assert str(asker.outcome) == "no row of query set 'test' has number 99."
        else:
            assert asker.outcome.ids.tolist() == [row] * (row % 3)
    assert len(engine.asked) < 30, "halving finds the two"


def test_an_unforeseen_error_reaches_every_asker(engine, batches, monkeypatch):
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,))) for row in (1, 2, 3)])
    monkeypatch.setattr(servicer, "parts", lambda *_: 1 / 0)
    engine.go.set()
    for asker in askers:
        with pytest.raises(ZeroDivisionError):
            asker.join()
    until(lambda: batches.waiting() == 0)
    monkeypatch.undo()
    again = Asker(batches, TopK("fc", QuerySetExamples("test", (1,))))
    again.join()
    assert again.outcome.ids.tolist() == [1]


@pytest.mark.parametrize("failure", [Damaged("a file was altered."), BadMask("no such column", field="where")])
def test_an_error_that_is_no_askers_own_is_met_once(engine, batches, failure):
    """A damaged file would be read again by every half, and a mask, unlike queries, is everyone's."""
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,)), where="x =") for row in range(17)])
    engine.failure = failure
    engine.go.set()
    for asker in askers:
        asker.join()
    assert [str(asker.outcome) for asker in askers[1:]] == [str(failure)] * 16
    assert [len(numbers(one)) for one in engine.asked] == [1, 16]


@pytest.mark.parametrize("field", ["queries", "k", "by"])
def test_what_is_too_large_together_and_not_alone_is_asked_in_parts(engine, batches, monkeypatch, field):
    """An answer's bound is one question's, and the memory may have grown since the last one of a kind was measured."""
    own = engine.ask

    def ask(question, *rest):
        if question.queries.count > 4:
            raise BadInput("The answer would take too much.", field=field)
        return own(question, *rest)

    monkeypatch.setattr(engine, "ask", ask)
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,))) for row in range(17)])
    engine.go.set()
    for row, asker in enumerate(askers):
        asker.join()
        assert asker.outcome.ids.tolist() == [row] * (row % 3)


def test_kinds_that_nobody_asks_for_any_more_leave_nothing_behind(engine, batches):
    first = Asker(batches, TopK("fc", QuerySetExamples("test", (1,)), where="slot <> 0"))
    assert engine.begun.acquire(timeout=60)
    left = [Asker(batches, TopK("fc", QuerySetExamples("test", (1,)), where=f"slot <> {i}")) for i in range(1, 50)]
    until(lambda: batches.lanes.untried.waiting == 49)
    for asker in left[:-1]:
        asker.leave()
    until(lambda: batches.lanes.untried.waiting == 1)
    assert len(batches.batches._queues) == 2
    again = Asker(batches, TopK("fc", QuerySetExamples("test", (1,)), where="slot <> 1"))
    engine.go.set()
    for asker in (first, left[-1], again):
        asker.join()
        assert asker.outcome.ids.tolist() == [1]


def test_who_is_answered_does_not_wait_for_the_other_half(engine, batches):
    rows = [1, 2, 3, 99]
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,))) for row in (1, *rows)])
    engine.held_row = 3
    engine.go.set()
    for asker in askers[1:3]:
        asker.join()
    assert not askers[3].answered
    engine.let_go.set()
    for asker in askers:
        asker.join()


def refuse(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_those_whose_line_gets_no_further_thread_fail(engine, batches, monkeypatch):
    question = TopK("fc", QuerySetExamples("test", (1,)))
    first, *others = crowd(engine, batches, [question] * 3)
    with monkeypatch.context() as patch:
        for lane in (batches.lanes.untried, batches.lanes.light):
            patch.setattr(lane._pool, "submit", refuse)
        engine.go.set()
        first.join()
        assert first.outcome.ids.tolist() == [1]
        for asker in others:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                asker.join()
    again = Asker(batches, question)
    again.join()
    assert again.outcome.ids.tolist() == [1]


def test_a_caller_that_goes_away_ends_its_own_wait_only(engine, batches):
    question = TopK("fc", QuerySetExamples("test", (1,)))
    scanned, waiting, other = crowd(engine, batches, [question] * 3)
    for asker in (scanned, waiting):
        asker.leave()
        asker.join()
        assert isinstance(asker.outcome, Cancelled)
    until(lambda: engine.stopped)
    assert engine.begun.acquire(timeout=60), "the other's scan begins"
    engine.go.set()
    other.join()
    assert other.outcome.ids.tolist() == [1]
    assert [numbers(one) for one in engine.asked] == [[1], [1]], "nobody asks for who has gone"


def test_a_shared_scan_goes_on_while_anybody_waits_and_then_stops(engine, batches):
    first, *sharing = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (row,))) for row in range(4)])
    first.leave()
    assert engine.begun.acquire(timeout=60)
    engine.stopped = False
    for asker in sharing[:2]:
        asker.leave()
        asker.join()
    time.sleep(0.05)
    assert not engine.stopped
    sharing[2].leave()
    until(lambda: engine.stopped)
    sharing[2].join()
    assert isinstance(sharing[2].outcome, Cancelled)


WIDTHS = {"layer-0": 6, "layer-1": 5}
SLOTS = 60


class Slow:
    """An engine whose questions take a while, so that others come meanwhile, on a busy machine, too."""

    def __init__(self, stored: Any, seconds: float = 0.005) -> None:
        self.engine, self.seconds, self.scans = stored, seconds, 0

    def ask(
        self, question: Question, cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> Any:
        time.sleep(self.seconds)
        self.scans += 1
        return self.engine.ask(question, cancelled, bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("shared") / "run"
    small_memory.write(path, [20, 20, 20])
    with dualform.open(path) as engine:
        yield engine


def questions(count: int) -> list[Question]:
    """Of many kinds, some of them wrong: a width, a row, a slot, a query set, a column, a mask that leaves nothing."""
    rng = np.random.default_rng(3)
    wheres = [None, "label = 3", "dataset = 'first'", "seen", "slot < 0", "nothing = 1"]
    made: list[Question] = []
    for i in range(count):
        layer = ("layer-0", "layer-1")[i % 2]
        width = WIDTHS[layer] + (i % 13 == 0)
        queries = [
            Vectors(rng.normal(size=(1 + i % 3, width)).astype(np.float32)),
            QuerySetExamples("test" if i % 17 else "no-such", (i % 12 if i % 7 else 99,)),
            SlotKeys((i % SLOTS, 5) if i % 11 else (SLOTS,)),
        ][rng.integers(3)]
        where = wheres[rng.integers(len(wheres)) if i % 2 else 0]
        score = ("dot", "abs")[int(rng.integers(2))]
        by = [(), ("label",), ("dataset", "label")][rng.integers(3)]
        made.append(
            [
                TopK(layer, queries, int(rng.integers(1, 4)), where, by, score),
                TopK(layer, queries, score=score),
                GroupSum(layer, queries, by or ("step",), where),
                Output("layer-0", QuerySetExamples("test", (i % 12,)), where, allow_inexact=i % 3 > 0),
            ][rng.integers(4)]
        )
    return made


def outcome(ask: Callable[[Question], Any], question: Question) -> Any:
    try:
        return ask(question)
    except DualformError as error:
        return error


def test_every_asker_gets_the_bits_and_the_errors_that_it_would_get_alone(stored):
    asked = questions(240)
    rights = [outcome(stored.ask, question) for question in asked]
    kinds = {type(right).__name__ for right in rights}
    assert kinds >= {"Hits", "GroupSums", "Outputs", "BadInput", "EmptyMask", "Inexact", "NotFound"}
    slow = Slow(stored)
    with Server(slow) as server, Client(server.address) as client, ThreadPoolExecutor(48) as pool:
        got = list(pool.map(lambda question: outcome(client.ask, question), asked))
    for one, right in zip(got, rights, strict=True):
        if isinstance(right, DualformError):
            assert (type(one), str(one)) == (type(right), str(right))
        else:
            assert same(one, right)


COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@settings(deadline=None, max_examples=12)
@given(counts=COUNTS, k=st.integers(1, 9), by=st.sampled_from([(), ("label",)]), rows=st.randoms(use_true_random=False))
def test_the_parts_of_a_joined_question_are_the_answers_to_its_parts(stored, counts, k, by, rows):
    for kind in (
        lambda queries: TopK("layer-0", queries, k, "label < 7", by),
        lambda queries: GroupSum("layer-0", queries, by or ("dataset",)),
        lambda queries: GroupSum("layer-1", queries, ("label",), score="abs"),
        lambda queries: Output("layer-0", queries, allow_inexact=True),
    ):
        asked = [kind(QuerySetExamples("test", tuple(rows.randrange(12) for _ in range(count)))) for count in counts]
        for one, question in zip(parts(stored.ask(asked[0].joined(asked[1:])), counts), asked, strict=True):
            if getattr(question, "score", None) == "abs":  # to the precision of these sums
                np.testing.assert_allclose(one.sums, stored.ask(question).sums, rtol=1e-6)
            else:
                assert same(one, stored.ask(question))


def test_an_answer_is_of_the_snapshot_that_it_names_while_the_memory_grows(tmp_path):
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    queries = rng.normal(size=(8, 5)).astype(np.float32)
    writer = small_memory.open_writer(tmp_path / "run")
    writer.append(small_memory.batch(rng, 0, 20, inputs))
    writer.commit()
    rights, got, done = {}, [], threading.Event()
    with dualform.open(tmp_path / "run") as stored:
        slow = Slow(stored)
        rights[stored.info().snapshot] = [stored.topk("layer-1", query) for query in queries]

        def ask(i: int) -> None:
            with Client(server.address) as client:
                while not done.is_set():
                    got.append((i, client.topk("layer-1", queries[i])))

        with Server(slow, ServiceConfig("127.0.0.1:0", follow=600)) as server, ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, i) for i in range(8)]
            for step in range(1, 4):
                seen = len(got)
                while len(got) < seen + 16:
                    time.sleep(0.001)
                writer.append(small_memory.batch(rng, step, 20, inputs))
                writer.commit()
                with dualform.open(tmp_path / "run") as fresh:
                    rights[fresh.info().snapshot] = [fresh.topk("layer-1", query) for query in queries]
                stored.refresh()
            done.set()
            for one in asking:
                one.result()
    writer.abandon()
    assert len({one.scan.snapshot for _, one in got}) >= 3
    for i, one in got:
        right = rights[one.scan.snapshot][i]
        assert same(one, right)
        assert one.scan.slots_scanned == right.scan.slots_scanned
