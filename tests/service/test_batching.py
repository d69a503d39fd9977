"""Questions that share scans: what each asker gets is what it would have got alone, and nobody ends another's work."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dualform.answers import Scan
from dualform.errors import BadInput, BadMask, Cancelled, Damaged, DualformError
from dualform.questions import GroupSum, Output, QuerySetExamples, SlotKeys, TopK, Vectors
from dualform_service import servicer
from dualform_service.scheduling import Asker as Who
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


def test_what_answering_took_is_that_of_the_shared_scan(engine, batches):
    askers = crowd(engine, batches, [TopK("fc", QuerySetExamples("test", (query,))) for query in (2, 2, 5)])
    engine.go.set()
    for asker in askers:
        asker.join()
    assert [asker.outcome.scan for asker in askers] == [Scan(snapshot, 4, 4, "numpy", 0.25) for snapshot in (1, 2, 2)]


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
