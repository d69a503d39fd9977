"""An engine whose scans wait until they may go on, and those who ask it together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest

from dualform.answers import GroupSums, Hits, Outputs, Scan, Status
from dualform.errors import Cancelled, DualformError, NotFound
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import GroupSum, QuerySetExamples, SlotKeys, TopK, Vectors
from dualform_service.scheduling import Asker as Who, Deadline, Lanes
from dualform_service.server import Server
from dualform_service.servicer import Batches, Question
from dualform_service.settings import ANSWER_BYTES

ONE = Who("one")


class Held:
    """An engine whose scans wait until they may go on. Query q's answer is slot q; the row 99 of a query set is
    missing.
    """

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.asked: list[Question] = []
        self.stopped = False
        self.failure: Exception | None = None
        """What every further question meets."""
        self.held_row: int | None = None
        """Of a query set: what asks for it alone waits for `let_go`."""
        self.let_go = threading.Event()

    def counted(self, question: Question) -> Question:
        return question

    def ask(
        self, question: Question, cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> Any:
        self.asked.append(question)
        if self.failure is not None:
            raise self.failure
        if numbers(question) == [self.held_row]:
            assert self.let_go.wait(60)
        if isinstance(question.queries, QuerySetExamples) and 99 in (question.queries.examples or ()):
            raise NotFound("no row of query set 'test' has number 99.", field="queries")
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
        case QuerySetExamples(_, rows):
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
    return Outputs(values, "sample", Status("exact"), 0.0, scan)


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


class LoopBatches:
    """Batches on a loop with a thread of its own, for askers on other threads."""

    def __init__(self, engine: Held, answer_bytes: int = ANSWER_BYTES) -> None:
        self.loop, self.lanes = asyncio.new_event_loop(), Lanes()
        self.batches = Batches(engine, self.lanes, answer_bytes)
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def ask(self, question: Question, deadline: Deadline, asker: Who = ONE) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self.batches.ask(question, deadline, asker), self.loop)

    def waiting(self) -> int:
        return self.batches.waiting()

    def close(self) -> None:
        self.lanes.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _turn(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()


class Asker:
    """One asker; what it got stands in `outcome` once it has been joined."""

    def __init__(self, batches: LoopBatches, question: Question, asker: Who = ONE) -> None:
        self._deadline = Deadline(None, 60.0)
        self._answer = batches.ask(question, self._deadline, asker)
        self.outcome: Any = None

    def join(self) -> None:
        try:
            self.outcome = self._answer.result(60)
        except CancelledError:
            self.outcome = self._deadline.error()
        except DualformError as error:
            self.outcome = error

    @property
    def answered(self) -> bool:
        return self._answer.done()

    def leave(self) -> None:
        """As the transport does where a caller goes away."""
        self._answer.cancel()
        self._deadline.end()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def outcomes(server: Server, method: str) -> dict[str, int]:
    """Number of calls that ended, by outcome."""
    found = Counter[str]()
    for family in server.metrics.registry.restricted_registry(["dualform_calls_total"]).collect():
        for one in family.samples:
            if one.labels["method"] == method:
                found[one.labels["outcome"]] += int(one.value)
    return dict(found)


@pytest.fixture
def engine():
    held = Held()
    yield held
    held.go.set()


@pytest.fixture
def batches(request, engine):
    """A parameter is what the answers of one scan may take together."""
    made = LoopBatches(engine, getattr(request, "param", ANSWER_BYTES))
    yield made
    engine.go.set()
    made.close()


def crowd(engine: Held, batches: LoopBatches, questions: list[Question]) -> list[Asker]:
    """Asks the first, and the others while its scan is under way."""
    first = Asker(batches, questions[0])
    assert engine.begun.acquire(timeout=60)
    others = [Asker(batches, question) for question in questions[1:]]
    until(lambda: batches.waiting() == len(others))
    return [first, *others]
