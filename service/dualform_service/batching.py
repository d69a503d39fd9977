"""Small questions of one kind that are asked at the same time share one scan.

A scan with 64 queries costs a few times as much as one with a single query, not 64 times. A kind is everything but the
queries: layer, mask, groups, k, score. If no scan of its kind is running, a question is asked at once; questions that
come while one is running share the next. Answers are canonical, so each asker gets what it would have got alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeGuard

from dualform.errors import BadInput, NotFound
from dualform.questions import LayerQuestion
from dualform_service.engine import Engine
from dualform_service.limits import Deadline

Question: TypeAlias = LayerQuestion[Any]

SMALL_QUERIES = 16
"""Most queries of a question that waits for others to share a scan."""
QUERIES = 128
"""Most queries that share a scan; a question may say that fewer of its kind are worth it."""
ANSWER_BYTES = 64 * 2**20
"""Most bytes that the answers of one scan take together, estimated from the last answer of its kind."""
LINGER = 0.03
"""Most seconds that a kind waits for the askers of its last scan to ask again. `make bench ONLY=serving` measures what
this and the share below bring."""
LINGER_SHARE = 0.75
"""Most of that scan's own time that the wait may take."""


@dataclass(eq=False)
class _PendingQuestion:
    question: Question
    deadline: Deadline
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: BaseException | None = None

    @property
    def queries(self) -> int:
        return self.question.queries.count or 0


@dataclass(eq=False)
class _Queue:
    """The questions that wait for the next scan of a kind. It exists while such a scan runs or is about to begin."""

    kind: Hashable
    most_queries: int
    """That share one scan."""
    bytes_a_query: float | None
    """None until the first answer, if only the engine knows how large answers of this kind are: it is asked alone."""
    waiting: list[_PendingQuestion] = field(default_factory=list)
    expected: int = 0
    """A wait ends once so many questions have come."""


class Batches:
    """Asks an engine from many threads; at most `scans` at once, each of another kind."""

    def __init__(self, engine: Engine, scans: int) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._joined = threading.Condition(self._lock)
        self._queues: dict[Hashable, _Queue] = {}
        self._scans = ThreadPoolExecutor(scans, thread_name_prefix="dualform-batch")

    def ask(self, question: Question, deadline: Deadline) -> Any:
        """What the engine answers to a question that `can_share`.

        Raises what the engine raises to this question, and TimedOut or Cancelled at the deadline.
        """
        asker, kind = _PendingQuestion(question, deadline), question.kind
        deadline.on_end(asker.answered.set)
        with self._lock:
            queue = self._queues.get(kind)
            if queue is None:
                most = min(QUERIES, question.most_joined or QUERIES)
                queue = self._queues[kind] = _Queue(kind, most, question.bytes_a_query)
                self._begin(queue)
            queue.waiting.append(asker)
            if len(queue.waiting) == queue.expected:
                self._joined.notify_all()
        asker.answered.wait(deadline.remaining())
        if asker.error is not None:
            raise asker.error
        if asker.answer is None:
            with self._lock:
                if asker in queue.waiting:
                    queue.waiting.remove(asker)
            raise deadline.error()
        return asker.answer

    def waiting(self) -> int:
        """Questions that wait for their scan to begin."""
        with self._lock:
            return sum(len(queue.waiting) for queue in self._queues.values())

    def close(self) -> None:
        """Returns when no scan is under way. Those whose askers have gone end soon."""
        self._scans.shutdown()

    def _begin(self, queue: _Queue) -> None:
        """Submit the next scan. If that fails, ends the queue and raises. The caller must hold the lock."""
        try:
            self._scans.submit(self._scan, queue)
        except BaseException:
            self._end(queue)
            raise

    def _end(self, queue: _Queue) -> None:
        if self._queues.get(queue.kind) is queue:  # a scan whose submission raised may run all the same
            del self._queues[queue.kind]

    def _scan(self, queue: _Queue) -> None:
        """Run one scan of a kind, and submit the next if questions wait for it."""
        with self._lock:
            askers = self._next(queue)
        if askers:
            began = time.monotonic()
            self._answer(askers, queue)
            if len(askers) > 1:
                self._linger(queue, len(askers), min(LINGER, LINGER_SHARE * (time.monotonic() - began)))
        with self._lock:
            if not queue.waiting:
                self._end(queue)
                return
            try:
                self._begin(queue)
            except Exception as error:
                _fail(queue.waiting, error)
                queue.waiting = []

    def _next(self, queue: _Queue) -> list[_PendingQuestion]:
        """The questions of the next scan, first come, first served: at least one if any still waits."""
        queue.waiting = [asker for asker in queue.waiting if not asker.deadline.passed()]
        size = queue.bytes_a_query
        room = 1 if size is None else min(queue.most_queries, int(ANSWER_BYTES / size))
        taken = 0
        for count, asker in enumerate(queue.waiting):
            taken += asker.queries
            if count and taken > room:
                askers, queue.waiting = queue.waiting[:count], queue.waiting[count:]
                return askers
        askers, queue.waiting = queue.waiting, []
        return askers

    def _linger(self, queue: _Queue, askers: int, seconds: float) -> None:
        """Wait a moment for the others, because those who shared a scan are likely to ask again at once.

        Without this the crowd splits into several that scan in turn, each nearly as long as one scan for all.
        """
        with self._lock:
            queue.expected = len(queue.waiting) + askers
            self._joined.wait_for(lambda: len(queue.waiting) >= queue.expected, seconds)
            queue.expected = 0

    def _answer(self, askers: list[_PendingQuestion], queue: _Queue) -> None:
        """Give each asker its answer or its error.

        A mistake in one asker's queries is no error of the others. It shows before the scan, so halving finds it at
        little cost. Any other error would strike each half again, so everyone gets it.
        """
        counts = [asker.queries for asker in askers]
        try:
            first, *others = (asker.question for asker in askers)
            together = first.joined(others)
            answer = self._engine.ask(together, lambda: all(asker.deadline.passed() for asker in askers))
            queue.bytes_a_query = max(1.0, answer.nbytes / sum(counts))
            for asker, part in zip(askers, list(parts(answer, counts)), strict=True):
                asker.answer = part
                asker.answered.set()
        except (BadInput, NotFound) as error:
            if len(askers) == 1:
                _fail(askers, error)
                return
            middle = len(askers) // 2
            self._answer(askers[:middle], queue)
            self._answer(askers[middle:], queue)
        except Exception as error:
            _fail(askers, error)


def can_share(question: object) -> TypeGuard[Question]:
    """Whether a question is small, and may wait for others of its kind."""
    return (
        isinstance(question, LayerQuestion)
        and question.kind is not None
        and (question.queries.count or 0) <= SMALL_QUERIES
    )


def parts(answer: Any, counts: Sequence[int]) -> Iterator[Any]:
    """The answer's share of each question, of `counts` queries."""
    return (answer.part(start, stop) for start, stop in pairwise(accumulate(counts, initial=0)))


def _fail(askers: list[_PendingQuestion], error: Exception) -> None:
    for asker in askers:
        asker.error = error
        asker.answered.set()
