"""What ends one asker's question of a shared scan, and what ends everyone's."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dualform.errors import Cancelled, Damaged, TimedOut
from dualform.questions import ProbeRows, TopK
from dualform_service import batching
from dualform_service.limits import CallState, Deadline
from tests.service.held_engine import Asker, batches as batches, crowd, engine as engine, numbers, until


def test_one_askers_error_is_nobody_elses(engine, batches):
    rows = [1, *range(30), 99, *range(30, 50), 99]
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in rows])
    engine.go.set()
    for asker, row in zip(askers, rows, strict=True):
        asker.join()
        if row == 99:
            assert str(asker.outcome) == "no row of probe 'test' has number 99."
        else:
            assert asker.outcome.ids.tolist() == [row] * (row % 3)
    assert len(engine.asked) < 30, "halving finds the two"


def test_an_unforeseen_error_reaches_every_asker(engine, batches, monkeypatch):
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in (1, 2, 3)])
    monkeypatch.setattr(batching, "parts", lambda *_: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the askers' threads end by it
    engine.go.set()
    for asker in askers:
        asker.join(60)
        assert not asker.is_alive()
    until(lambda: batches.waiting() == 0)
    monkeypatch.undo()
    again = Asker(batches, TopK("fc", ProbeRows("test", (1,))))
    again.join()
    assert again.outcome.ids.tolist() == [1]


def test_an_error_that_is_nobodys_fault_is_met_once(engine, batches):
    """A damaged file would be read again by every half."""
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in range(17)])
    engine.failure = Damaged("keys-000000.faiss was altered.")
    engine.go.set()
    for asker in askers:
        asker.join()
    assert [str(asker.outcome) for asker in askers[1:]] == ["keys-000000.faiss was altered."] * 16
    assert [len(numbers(one)) for one in engine.asked] == [1, 16]


def test_who_is_answered_does_not_wait_for_the_other_half(engine, batches):
    rows = [1, 2, 3, 99]
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in (1, *rows)])
    engine.held_row = 3
    engine.go.set()
    for asker in askers[1:3]:
        asker.join(60)
        assert not asker.is_alive()
    assert askers[3].is_alive()
    engine.let_go.set()
    for asker in askers:
        asker.join()


def test_a_question_that_gets_no_turn_fails_and_the_next_is_asked(engine, batches, monkeypatch):
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    question = TopK("fc", ProbeRows("test", (1,)))
    with monkeypatch.context() as patch:
        patch.setattr(batches._scans, "submit", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            batches.ask(question, Deadline(CallState(), 10.0))
    engine.go.set()
    again = Asker(batches, question)
    again.join()
    assert again.outcome.ids.tolist() == [1]


def test_those_whose_line_gets_no_further_turn_fail(engine, batches, monkeypatch):
    outcomes: list[BaseException] = []

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "excepthook", lambda raised: outcomes.append(raised.exc_value))
    question = TopK("fc", ProbeRows("test", (1,)))
    askers = crowd(engine, batches, [question] * 3)
    with monkeypatch.context() as patch:
        patch.setattr(batches._scans, "submit", refuse)
        engine.go.set()
        for asker in askers:
            asker.join(60)
            assert not asker.is_alive()
    assert [str(error) for error in outcomes] == ["can't start new thread"] * 2
    again = Asker(batches, question)
    again.join()
    assert again.outcome.ids.tolist() == [1]


def test_a_caller_that_goes_away_ends_its_own_wait_only(engine, batches):
    question = TopK("fc", ProbeRows("test", (1,)))
    scanned, waiting, other = crowd(engine, batches, [question] * 3)
    for asker in (scanned, waiting):
        asker.call.end()
        asker.join()
        assert isinstance(asker.outcome, Cancelled)
    until(lambda: engine.stopped)
    assert engine.begun.acquire(timeout=60), "the other's scan begins"
    engine.go.set()
    other.join()
    assert other.outcome.ids.tolist() == [1]
    assert [numbers(one) for one in engine.asked] == [[1], [1]], "nobody asks for who has gone"


def test_a_shared_scan_goes_on_while_anybody_waits_and_then_stops(engine, batches):
    first, *sharing = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in range(4)])
    first.call.end()
    assert engine.begun.acquire(timeout=60)
    engine.stopped = False
    for asker in sharing[:2]:
        asker.call.end()
        asker.join()
    time.sleep(0.05)
    assert not engine.stopped
    sharing[2].call.end()
    until(lambda: engine.stopped)
    sharing[2].join()
    assert isinstance(sharing[2].outcome, Cancelled)


def test_a_deadline_ends_one_askers_wait(engine, batches):
    question = TopK("fc", ProbeRows("test", (1,)))
    first = Asker(batches, question)
    assert engine.begun.acquire(timeout=60)
    hasty = Asker(batches, question, CallState(0.05))
    hasty.join()
    assert isinstance(hasty.outcome, TimedOut)
    assert batches.waiting() == 0
    engine.go.set()
    first.join()
    assert first.outcome.ids.tolist() == [1]
