"""What ends one asker's question of a shared scan, and what ends everyone's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dualform.errors import BadInput, BadMask, Cancelled, Damaged, TimedOut
from dualform.questions import QuerySetExamples, TopK
from dualform_client import Client
from dualform_service import batching
from dualform_service.server import Server
from tests.service.canned import Canned
from tests.service.held_engine import Asker, batches as batches, crowd, engine as engine, numbers, until


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
    monkeypatch.setattr(batching, "parts", lambda *_: 1 / 0)
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


def test_a_question_that_gets_no_thread_fails_and_the_next_is_asked(engine, batches, monkeypatch):
    question = TopK("fc", QuerySetExamples("test", (1,)))
    with monkeypatch.context() as patch:
        patch.setattr(batches.lanes.untried._pool, "submit", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Asker(batches, question).join()
    engine.go.set()
    again = Asker(batches, question)
    again.join()
    assert again.outcome.ids.tolist() == [1]


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


def test_a_deadline_ends_one_askers_wait():
    engine = Canned()
    engine.hold.clear()
    query = np.ones((1, 3), np.float32)
    with Server(engine) as server, Client(server.address) as client, ThreadPoolExecutor(1) as pool:
        patient = pool.submit(client.topk, "fc", query)
        assert engine.waiting.acquire(timeout=60)
        with Client(server.address, timeout=0.2) as hasty, pytest.raises(TimedOut):
            hasty.topk("fc", query)
        until(lambda: server.memories.waiting() == 0)
        engine.hold.set()
        assert patient.result(60).ids.tolist() == [1, 3]


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
