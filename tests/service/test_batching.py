"""Questions that share scans: what each asker gets is what it would have got alone, and nobody ends another's work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dualform.answers import Grade, GroupSums, Hits, Outputs, Scan
from dualform.errors import Cancelled, Damaged, DualformError, NotFound, Overloaded, TimedOut
from dualform.questions import GroupSum, Output, ProbeRows, SlotKeys, TopK, Vectors
from dualform_client import Client
from dualform_service import batching
from dualform_service.batching import Batches, Question
from dualform_service.config import ServiceConfig
from dualform_service.limits import Deadline
from dualform_service.server import Server
from tests.service.canned import Canned

ASKED_ALONE = 1
"""The first of a crowd finds no scan under way and is asked at once."""


class Call:
    """A call's context, as far as a deadline needs it."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds, self._active, self._told = seconds, True, list[Callable[[], None]]()

    def time_remaining(self) -> float | None:
        return self._seconds

    def is_active(self) -> bool:
        return self._active

    def add_callback(self, tell: Callable[[], None]) -> bool:
        self._told.append(tell)
        return self._active

    def end(self) -> None:
        self._active = False
        for tell in self._told:
            tell()


class Held:
    """An engine whose scans wait until they may go on. Query q's answer is slot q; the row 99 of a probe is missing."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.asked: list[Question] = []
        self.stopped = False
        self.failure: Exception | None = None
        """What every further question meets."""
        self.held_row: int | None = None
        """Of a probe: what asks for it alone waits for `let_go`."""
        self.let_go = threading.Event()

    def ask(self, question: Question, cancelled: Callable[[], bool] | None = None) -> Any:
        self.asked.append(question)
        if self.failure is not None:
            raise self.failure
        if numbers(question) == [self.held_row]:
            assert self.let_go.wait(5)
        if isinstance(question.queries, ProbeRows) and 99 in (question.queries.rows or ()):
            raise NotFound("no row of probe 'test' has number 99.", field="queries")
        self.begun.release()
        while not self.go.is_set():
            if cancelled is not None and cancelled():
                self.stopped = True
                raise Cancelled("stopped")
            time.sleep(0.001)
        return answer(question, Scan(len(self.asked), 4, 4, "numpy", 0.25))


def numbers(question: Question) -> list[int]:
    match question.queries:
        case Vectors(rows):
            return [int(row[0]) for row in rows]
        case ProbeRows(_, rows):
            return list(rows or ())
        case SlotKeys(slots):
            return list(slots)


def answer(question: Question, scan: Scan) -> Any:
    own = np.array(numbers(question))
    match question:
        case TopK(by=()):
            # Query q has q % 3 hits, so that parts differ in length.
            counts = (own % 3)[:, None]
            ids = np.repeat(own, own % 3)
            return Hits(ids, ids.astype(np.float32), counts, None, (), scan)
        case TopK():
            counts = np.stack([own % 2, own % 3], axis=1)
            ids = np.repeat(own, own % 2 + own % 3)
            return Hits(ids, ids.astype(np.float32), counts, ((1,), (2,)), question.by, scan)
        case GroupSum():
            return GroupSums(((1,), (2,)), np.stack([own, own + 0.5], axis=1), np.array([3, 4]), question.by, scan)
    values = np.stack([own, -own], axis=1).astype(np.float32)
    return Outputs(values, "sample", Grade("exact"), 0.0, scan)


def same(got: Any, right: Any) -> bool:
    """Bit by bit, but for what answering took."""
    if isinstance(got, Hits):
        return (
            np.array_equal(got.ids, right.ids)
            and np.array_equal(got.flat_scores, right.flat_scores)
            and np.array_equal(got.counts, right.counts)
            and (got.groups, got.by) == (right.groups, right.by)
        )
    if isinstance(got, GroupSums):
        return np.array_equal(got.sums, right.sums) and got.groups == right.groups
    return np.array_equal(got[0], right[0])


class Asker(threading.Thread):
    """One asker; what it got stands in `outcome` once it has ended."""

    def __init__(self, batches: Batches, question: Question, call: Call | None = None) -> None:
        super().__init__()
        self.call = call or Call()
        self.outcome: Any = None
        self._batches, self._question = batches, question
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._batches.ask(
                self._question,
                Deadline(self.call, 10.0),  # type: ignore[arg-type]
            )
        except DualformError as error:
            self.outcome = error


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def engine():
    held = Held()
    yield held
    held.go.set()


@pytest.fixture
def batches(engine):
    made = Batches(engine, 4)
    yield made
    engine.go.set()
    made.close()


def crowd(engine: Held, batches: Batches, questions: list[Question]) -> list[Asker]:
    """Asks the first, and the others while its scan is under way."""
    first = Asker(batches, questions[0])
    assert engine.begun.acquire(timeout=5)
    others = [Asker(batches, question) for question in questions[1:]]
    until(lambda: batches.waiting() == len(others))
    return [first, *others]


KINDS = [
    lambda query: TopK("fc", Vectors(np.full((1, 3), query))),
    lambda query: TopK("fc", ProbeRows("test", (query, query + 1))),
    lambda query: TopK("fc", SlotKeys((query,)), by=("label",)),
    lambda query: GroupSum("fc", ProbeRows("test", (query,)), ("label",)),
    lambda query: Output("fc", Vectors(np.full((2, 3), query)), at_step=3),
]


@pytest.mark.parametrize("kind", KINDS, ids=["vectors", "probe rows", "slots, by", "sums", "output"])
def test_those_who_come_while_a_scan_is_under_way_share_the_next(engine, batches, kind):
    questions = [kind(query) for query in range(20)]
    askers = crowd(engine, batches, questions)
    engine.go.set()
    for asker, question in zip(askers, questions, strict=True):
        asker.join()
        assert same(asker.outcome, answer(question, Scan()))
    assert [len(numbers(one)) for one in engine.asked] == [
        len(numbers(questions[0])),
        sum(len(numbers(one)) for one in questions[1:]),
    ]


def test_few_queries_of_a_softmax_share_a_pass(engine, batches):
    questions = [Output("fc", Vectors(np.full((1, 3), query)), kernel="softmax") for query in range(40)]
    askers = crowd(engine, batches, questions)
    engine.go.set()
    for asker, question in zip(askers, questions, strict=True):
        asker.join()
        assert same(asker.outcome, answer(question, Scan()))
    assert [len(numbers(one)) for one in engine.asked] == [1, 16, 16, 7]


def test_a_lone_asker_is_asked_as_it_is(engine, batches):
    engine.go.set()
    question = TopK("fc", ProbeRows("test", (1,)))
    for _ in range(3):
        asker = Asker(batches, question)
        asker.join()
    assert [one is question for one in engine.asked] == [True] * 3


def test_what_answering_took_is_that_of_the_shared_scan(engine, batches):
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (query,))) for query in (2, 2, 5)])
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
    TopK("fc", ProbeRows("test", (0,))),
    TopK("fc", ProbeRows("train", (0,))),
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


def test_a_whole_probe_is_of_no_kind():
    assert TopK("fc", ProbeRows("test")).kind is None


def test_at_most_so_many_kinds_are_scanned_at_once(engine):
    batches = Batches(engine, 2)
    askers = [Asker(batches, question) for question in OTHERS]
    for _ in range(2):
        assert engine.begun.acquire(timeout=5)
    until(lambda: batches.waiting() == len(OTHERS) - 2)
    assert len(engine.asked) == 2
    engine.go.set()
    for asker in askers:
        asker.join()
        assert not isinstance(asker.outcome, DualformError)
    batches.close()


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
        asker.join(5)
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
        asker.join(5)
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
            batches.ask(question, Deadline(Call(), 10.0))  # type: ignore[arg-type]
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
            asker.join(5)
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
    assert engine.begun.acquire(timeout=5), "the other's scan begins"
    engine.go.set()
    other.join()
    assert other.outcome.ids.tolist() == [1]
    assert [numbers(one) for one in engine.asked] == [[1], [1]], "nobody asks for who has gone"


def test_a_shared_scan_goes_on_while_anybody_waits_and_then_stops(engine, batches):
    first, *sharing = crowd(engine, batches, [TopK("fc", ProbeRows("test", (row,))) for row in range(4)])
    first.call.end()
    assert engine.begun.acquire(timeout=5)
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
    assert engine.begun.acquire(timeout=5)
    hasty = Asker(batches, question, Call(0.05))
    hasty.join()
    assert isinstance(hasty.outcome, TimedOut)
    assert batches.waiting() == 0
    engine.go.set()
    first.join()
    assert first.outcome.ids.tolist() == [1]


def test_a_scan_takes_no_more_queries_than_it_may(engine, batches):
    askers = crowd(engine, batches, [TopK("fc", ProbeRows("test", (1,) * 10)) for _ in range(1 + 30)])
    engine.go.set()
    for asker in askers:
        asker.join()
        assert asker.outcome.ids.tolist() == [1] * 10
    assert [len(numbers(one)) for one in engine.asked] == [10, 120, 120, 60]


def test_a_scan_takes_no_more_queries_than_their_answers_leave_room_for(engine, batches, monkeypatch):
    # Sums of two groups take 16 bytes a query, which the first answer tells.
    monkeypatch.setattr(batching, "ANSWER_BYTES", 64)
    askers = crowd(engine, batches, [GroupSum("fc", ProbeRows("test", (1,)), ("label",)) for _ in range(1 + 10)])
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
        assert engine.waiting.acquire(timeout=5)
        for thread in threads[1:]:
            thread.start()
        until(lambda: server.batches.waiting() == 2)
        with pytest.raises(Overloaded, match=r"already holds 3 small questions\..*larger --max-small"):
            client.topk("fc", query)
        assert client.info().snapshot == 7, "what is no question has places of its own"
        assert len([one for one in engine.asked if isinstance(one, TopK)]) == ASKED_ALONE
        engine.hold.set()
        for thread in threads:
            thread.join()
        assert [outcome.slots[0].tolist() for outcome in outcomes] == [[1, 3]] * 3


def test_questions_of_many_queries_are_asked_alone():
    engine = Canned()
    engine.hold.clear()
    with Server(engine) as server, Client(server.address) as client:
        query = np.ones((17, 3), np.float32)
        threads = [threading.Thread(target=lambda: client.topk("fc", query)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert engine.waiting.acquire(timeout=5)
        with pytest.raises(Overloaded, match=r"already answers 4 questions at once\."):
            client.topk("fc", query)
        engine.hold.set()
        for thread in threads:
            thread.join()
