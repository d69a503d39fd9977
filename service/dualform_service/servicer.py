"""How the questions about one memory are answered: each call by its line in the table of dualform_proto.calls.

A call takes a place and a lane (scheduling.py), decodes its question, asks it, and encodes the answer.

Small questions of one kind that are asked at the same time share one scan. A scan with 64 queries costs a few times as
much as one with a single query, not 64 times. A kind is everything but the queries: layer, mask, groups, k, score. If
no scan of its kind is running, a question is asked at once; questions that come while one is running, or waits for a
thread, share the next. Answers are canonical, so each asker gets what it would have got alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeGuard

from google.protobuf.message import DecodeError

from dualform.errors import BadInput, NotFound
from dualform.questions import Inventory, LayerQuestion, PreviewLookup, QuerySetLookup, SlotLookup
from dualform_proto.calls import CALLS, Call
from dualform_service.call_record import CallRecord, current, layer_of
from dualform_service.metrics import CountedEngine
from dualform_service.scheduling import Asker, Deadline, FairSemaphore, Lane, Lanes, Places, ScanCosts, Thread, Turn
from dualform_service.settings import ServiceConfig

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
UNREAD = 4
"""Answers of the largest size that may wait to be read at once."""
SMALL_BYTES = 2**20
"""Largest message of a question that is decoded before it has a place of its own, to see whether it is small."""
FREE_BYTES = 64 * 2**10
"""Largest message that is decoded or encoded at once, on the loop, and largest answer that takes no room: there are
few beside those that do."""
BESIDE_BYTES = 1024
"""What the message of a large answer mostly takes beside its numbers."""
LOOKUPS = (PreviewLookup, Inventory, QuerySetLookup, SlotLookup)

_CALLS = {call.method: call for call in CALLS.values()}


class NoRoom(Exception):
    """So many bytes are wanted, and others hold them."""

    def __init__(self, size: int) -> None:
        self.size = size


class Holding:
    """What one answer holds of a room."""

    def __init__(self, room: FairSemaphore, asker: Asker) -> None:
        self._room, self._asker, self._size = room, asker, 0

    def hold_now(self, size: int) -> None:
        """Holds so many at least from here on. Raises NoRoom, and then holds what it held."""
        if size > self._size:
            if not self._room.take_now(self._asker, size - self._size):
                raise NoRoom(size)
            self._size = size

    async def hold(self, size: int) -> None:
        """Returns once it holds so many, and nothing meanwhile, so that no two wait for each other."""
        self.release()
        await self._room.take(self._asker, size)
        self._size = size

    def release(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._room.give_back(self._asker, size)


class Resources:
    """Of one server, however many memories it has."""

    def __init__(self, config: ServiceConfig) -> None:
        self.lanes = Lanes()
        self.answer_bytes = config.answer_bytes
        self.alone_places = Places(config.max_concurrent, "large questions", "--max-concurrent")
        """For what is asked alone, and may take long."""
        self.light_places = Places(config.max_small, "small questions", "--max-small")
        """For questions that may share their work, and are known to take little."""
        self.slow_places = Places(config.max_small, "small questions", "--max-small")
        """For the others that may share their work: they may wait long, and take no light one's place meanwhile."""
        self.lookup_places = Places(config.max_small, "look-ups", "--max-small")
        self.unread = FairSemaphore(UNREAD * config.answer_bytes)


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


@dataclass(frozen=True)
class EncodedAnswer:
    data: bytes
    release: Callable[[], None]
    """To be called once it was read, or will not be: then others have its room."""


class MemoryServicer:
    """Of one memory. Called on the event loop; the engine is asked on threads."""

    def __init__(self, engine: CountedEngine, resources: Resources) -> None:
        self._engine, self._resources, self._lanes = engine, resources, resources.lanes
        self.batches = Batches(engine, resources.lanes, resources.answer_bytes)

    async def answer(self, name: str, message: bytes, deadline: Deadline, asker: Asker) -> EncodedAnswer:
        """The answer of the method `name` to a message. Askers take turns where threads are few."""
        call = _CALLS[name]
        if issubclass(call.question.kind, LOOKUPS):
            with self._resources.lookup_places.one(asker):
                return await self._within_room(
                    lambda _: self._ask(call, message, deadline, self._lanes.lookups, asker), asker
                )
        if issubclass(call.question.kind, LayerQuestion) and len(message) <= SMALL_BYTES:
            question = await self._decoded(call, message, asker)
            if can_share(question):
                light = self.batches.light(question)
                places = self._resources.light_places if light else self._resources.slow_places
                with places.one(asker):
                    return await self._within_room(
                        lambda held: self._share(call, question, deadline, asker, held), asker
                    )
        with self._resources.alone_places.one(asker):
            return await self._held(await self._ask(call, message, deadline, self._lanes.heavy, asker), asker)

    async def _share(self, call: Call, question: Any, deadline: Deadline, asker: Asker, held: Holding) -> bytes:
        """The answer to a question that may share its work. Raises NoRoom, before its message is made."""
        answer = await self.batches.ask(question, deadline, asker)
        if answer.nbytes <= FREE_BYTES:
            return _encoded(call, answer)
        held.hold_now(answer.nbytes + BESIDE_BYTES)
        return await self._lanes.messages.run(lambda: _encoded(call, answer), asker)

    async def _ask(self, call: Call, message: bytes, deadline: Deadline, lane: Lane, asker: Asker) -> bytes:
        """The answer to a question that is asked alone; it is not even decoded before it has a thread."""
        record = current()

        def work() -> bytes:
            if deadline.passed():
                raise deadline.error()
            return _encoded(call, self._engine.ask(_decoded(call, message, record), deadline.passed))

        return await lane.run(work, asker)

    async def _decoded(self, call: Call, message: bytes, asker: Asker) -> Any:
        record = current()
        if len(message) <= FREE_BYTES:
            return _decoded(call, message, record)
        return await self._lanes.messages.run(lambda: _decoded(call, message, record), asker)

    async def _within_room(self, ask: Callable[[Holding], Awaitable[bytes]], asker: Asker) -> EncodedAnswer:
        """What `ask` returns, with room among the answers that nobody has read yet. Many may wait for room, so none of
        them holds an answer meanwhile: it is let go, and asked for again once there is room for it."""
        held = Holding(self._resources.unread, asker)
        try:
            while True:
                try:
                    data = await ask(held)
                    self._require_fitting(data)
                    if len(data) > FREE_BYTES:
                        held.hold_now(len(data))
                    return EncodedAnswer(data, held.release)
                except NoRoom as full:
                    data, size = b"", full.size
                await held.hold(size)
        except BaseException:
            held.release()
            raise

    async def _held(self, data: bytes, asker: Asker) -> EncodedAnswer:
        """Waits, in its place, for room among the answers that nobody has read yet: what took long is not asked for
        again, as few have such a place."""
        self._require_fitting(data)
        held = Holding(self._resources.unread, asker)
        if len(data) > FREE_BYTES:
            await held.hold(len(data))
        return EncodedAnswer(data, held.release)

    def _require_fitting(self, data: bytes) -> None:
        size, limit = len(data), self._resources.answer_bytes
        if size > limit:
            raise BadInput(
                f"The answer takes {size / 2**20:.1f} MiB; a message holds at most {limit / 2**20:.1f} MiB.",
                hint="Ask with fewer queries, a smaller k or a narrower filter at a time.",
            )


def _encoded(call: Call, answer: Any) -> bytes:
    data: bytes = call.result.encode(answer).SerializeToString()
    return data


def _decoded(call: Call, message: bytes, record: CallRecord) -> Any:
    """Raises BadInput for bytes that are no question of the method."""
    try:
        request = call.question.message.FromString(message)
    except DecodeError:
        raise BadInput(
            f"The message is not a {call.question.message.DESCRIPTOR.full_name}.",
            hint="Send a message of dualform.v1, encoded by protobuf.",
        ) from None
    question = call.question.decode(request)
    record.layer = layer_of(question)
    return question
