"""Questions that share scans: what each asker gets is what it would have got alone, and nobody ends another's work."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dualform.answers import Scan
from dualform.errors import DualformError, Overloaded
from dualform.questions import GroupSum, Output, QuerySetExamples, SlotKeys, TopK, Vectors
from dualform_client import Client
from dualform_service.config import ServiceConfig
from dualform_service.scheduling import Asker as Who
from dualform_service.server import Server
from tests.service.canned import Canned
from tests.service.held_engine import (
    ASKED_ALONE,
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


def test_a_lone_asker_is_asked_as_it_is(engine, batches):
    engine.go.set()
    question = TopK("fc", QuerySetExamples("test", (1,)))
    for _ in range(3):
        asker = Asker(batches, question)
        asker.join()
    assert [one is question for one in engine.asked] == [True] * 3


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


def test_many_small_questions_are_let_in_and_one_more_is_refused():
    engine = Canned()
    engine.hold.clear()
    config = ServiceConfig("127.0.0.1:0", max_concurrent=1, max_small=3)
    with Server(engine, config) as server, Client(server.address) as client:
        query = np.ones((1, 3), np.float32)
        outcomes: list[Any] = []
        threads = [threading.Thread(target=lambda: outcomes.append(client.topk("fc", query))) for _ in range(3)]
        threads[0].start()
        assert engine.waiting.acquire(timeout=60)
        for thread in threads[1:]:
            thread.start()
        until(lambda: server.memories.waiting() == 2)
        with pytest.raises(Overloaded, match=r"already holds 3 small questions\..*larger --max-small"):
            client.topk("fc", query)
        assert client.info().snapshot == 7, "what is no question has places of its own"
        assert len([one for one in engine.asked if isinstance(one, TopK)]) == ASKED_ALONE
        engine.hold.set()
        for thread in threads:
            thread.join()
        assert [outcome.slots[0].tolist() for outcome in outcomes] == [[1, 3]] * 3


def test_questions_of_many_queries_are_asked_alone_two_at_a_time():
    engine = Canned()
    engine.hold.clear()
    with Server(engine) as server, Client(server.address) as client:
        query = np.ones((17, 3), np.float32)
        threads = [threading.Thread(target=lambda: client.topk("fc", query)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            assert engine.waiting.acquire(timeout=60)
        until(lambda: server._handlers._resources.lanes.heavy.waiting == 2)
        with pytest.raises(Overloaded, match="already holds 4 large questions"):
            client.topk("fc", query)
        assert len(engine.asked) == 2
        engine.hold.set()
        for thread in threads:
            thread.join()
    assert len(engine.asked) == 4
