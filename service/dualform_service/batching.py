"""Small questions of one kind that are asked at the same time share one scan.

A scan with 64 queries costs a few times as much as one with a single query, not 64 times. A kind is everything but the
queries: layer, mask, groups, k, score. If no scan of its kind is running, a question is asked at once; questions that
come while one is running, or waits for a thread, share the next. Answers are canonical, so each asker gets what it
would have got alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeGuard

from dualform.errors import BadInput, NotFound
from dualform.questions import LayerQuestion
from dualform_service.call_record import CallRecord, current
from dualform_service.metrics import CountedEngine
from dualform_service.scheduling import Asker, Deadline, Lane, Lanes, ScanCosts, Thread, Turn

Question: TypeAlias = LayerQuestion[Any]

SMALL_QUERIES = 16
"""Most queries of a question that waits for others to share a scan."""
QUERIES = 128
"""Most queries that share a scan; a question may say that fewer of its kind are worth it."""
PARTED = ("queries", "k", "by", "points")
"""Fields of questions that share a scan whose error may be one asker's alone, or that of all of them together: an
answer to all may be too large where the answers to halves are not."""
LINGER = 0.03
"""Most seconds that a kind waits for the askers of its last scan to ask again. `make bench ONLY=serving` measures what
this and the share below bring."""
LINGER_SHARE = 0.75
"""Most of that scan's own time that the wait may take."""


@dataclass(eq=False)
class _PendingQuestion:
    question: Question
    deadline: Deadline
    asker: Asker
    answered: asyncio.Future[Any]
    record: CallRecord = field(default_factory=current)

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
    scanning: asyncio.Task[None] | None = None
    """What scans."""
    turn: Turn | None = None
    """In which it waits for a thread; None while it has one."""
    expected: int = 0
    """A wait for more ends once so many questions have come."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)


class Batches:
    """All state is the event loop's; scans run in the lanes, each of another kind."""

    def __init__(self, engine: CountedEngine, lanes: Lanes, answer_bytes: int) -> None:
        """`answer_bytes`: what the answers of one scan may take together, estimated from the last of its kind."""
        self._engine, self._lanes, self._answer_bytes = engine, lanes, answer_bytes
        self._queues: dict[Hashable, _Queue] = {}
        self._costs = ScanCosts()

    async def ask(self, question: Question, deadline: Deadline, asker: Asker) -> Any:
        """What the engine answers to a question that `can_share`; askers take turns where threads are few.

        Raises what the engine raises to this question. Where the caller is cancelled, a scan for others goes on.
        """
        kind = question.kind
        queue = self._queues.get(kind)
        if queue is None:
            most = min(QUERIES, question.most_joined or QUERIES)
            queue = self._queues[kind] = _Queue(kind, most, question.bytes_a_query)
            queue.scanning = asyncio.create_task(self._scan(queue))
        own = _PendingQuestion(question, deadline, asker, asyncio.get_running_loop().create_future())
        queue.waiting.append(own)
        if queue.turn is not None:
            queue.turn.join(asker)
        if len(queue.waiting) == queue.expected:
            queue.enough.set()
        try:
            return await own.answered
        finally:
            if own in queue.waiting:
                queue.waiting.remove(own)
                self._forget(queue)

    def _forget(self, queue: _Queue) -> None:
        """Lets go of a kind that nobody asks for any more, unless its scan runs: callers may name as many kinds as they
        like, and leave."""
        if not queue.waiting and queue.turn is not None and queue.scanning is not None:
            queue.scanning.cancel()
            self._queues.pop(queue.kind, None)

    def light(self, question: Question) -> bool:
        """Whether a question is known to take little."""
        return bool(self._costs.light(question.kind))

    def waiting(self) -> int:
        """Questions that wait for their scan to begin."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    async def _scan(self, queue: _Queue) -> None:
        """Scans of a kind, one after the other, for as long as questions wait for them."""
        try:
            while queue.waiting:
                lane = self._lane(queue.waiting[0].question)
                queue.turn = lane.turn(one.asker for one in queue.waiting)
                async with lane.thread(queue.turn) as thread:
                    queue.turn = None
                    began = time.monotonic()
                    count = await self._scan_once(queue, thread)
                if count > 1:
                    await self._linger(queue, count, min(LINGER, LINGER_SHARE * (time.monotonic() - began)))
        except Exception as error:  # no thread is to be had
            _fail(queue.waiting, error)
        finally:
            if self._queues.get(queue.kind) is queue:
                del self._queues[queue.kind]

    async def _scan_once(self, queue: _Queue, thread: Thread) -> int:
        """How many it was for; their answers are theirs alone from here on."""
        if askers := self._next(queue):
            await self._answer(askers, queue, thread)
        return len(askers)

    def _lane(self, question: Question) -> Lane:
        light = self._costs.light(question.kind)
        if light:
            return self._lanes.light
        # Outputs under a mask that is new take as long as rebuilding weights does.
        return self._lanes.untried if light is None and not question.rebuilds else self._lanes.heavy

    def _next(self, queue: _Queue) -> list[_PendingQuestion]:
        """The questions of the next scan, first come, first served: at least one if any still waits."""
        queue.waiting = [asker for asker in queue.waiting if not asker.deadline.passed()]
        size = queue.bytes_a_query
        room = 1 if size is None else min(queue.most_queries, int(self._answer_bytes / size))
        taken = 0
        for count, asker in enumerate(queue.waiting):
            taken += asker.queries
            if count and taken > room:
                askers, queue.waiting = queue.waiting[:count], queue.waiting[count:]
                return askers
        askers, queue.waiting = queue.waiting, []
        return askers

    async def _linger(self, queue: _Queue, askers: int, seconds: float) -> None:
        """Wait a moment for the others, because those who shared a scan are likely to ask again at once.

        Without this the crowd splits into several that scan in turn, each nearly as long as one scan for all.
        """
        queue.expected = len(queue.waiting) + askers
        queue.enough.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(queue.enough.wait(), seconds)
        queue.expected = 0

    async def _answer(self, askers: list[_PendingQuestion], queue: _Queue, thread: Thread) -> None:
        """Give each asker its answer or its error.

        A mistake in one asker's queries is no error of the others, and what is too large together need not be so alone.
        Both show before the scan, so halving finds them at little cost. Any other error, of a mask for example, would
        strike each half again, so everyone gets it.
        """
        try:
            with ExitStack() as working:
                for asker in askers:
                    working.enter_context(asker.record.work())
                answers, queue.bytes_a_query = await thread(partial(self._ask, askers, queue.kind))
        except (BadInput, NotFound) as error:
            if len(askers) == 1 or error.field not in PARTED:
                _fail(askers, error)
                return
            middle = len(askers) // 2
            await self._answer(askers[:middle], queue, thread)
            await self._answer(askers[middle:], queue, thread)
        except Exception as error:
            _fail(askers, error)
        else:
            for asker, answer in zip(askers, answers, strict=True):
                if not asker.answered.done():
                    asker.answered.set_result(answer)

    def _ask(self, askers: list[_PendingQuestion], kind: Hashable) -> tuple[list[Any], float]:
        """On a thread: the answer to each, and how many bytes one takes a query."""
        questions = [asker.question for asker in askers]
        if len(questions) > 1:  # each must know its number of queries, so that the answer can be split
            questions = [self._engine.counted(question) for question in questions]
        first, *others = questions
        with self._costs.noted(kind):
            answer = self._engine.ask(first.joined(others), lambda: all(asker.deadline.passed() for asker in askers))
        counts = [question.queries.count or 0 for question in questions] if others else [len(answer)]
        return list(parts(answer, counts)), max(1.0, answer.nbytes / sum(counts))


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
        if not asker.answered.done():
            asker.answered.set_exception(error)
