"""Places, turns and lanes for calls, what scans cost, and deadlines."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from dualform.errors import Cancelled, DualformError, Overloaded, TimedOut
from dualform.kernels import workers
from dualform.query import bounds
from dualform_service.call_record import current


class Deadline:
    """When one call must stop: at the caller's deadline, at the server's own, or when the caller has gone.

    Threads may ask it, too.
    """

    def __init__(self, seconds: float | None, longest: float) -> None:
        """`seconds` that its caller gives it; None for as long as it takes."""
        self._seconds = longest if seconds is None else min(longest, seconds)
        self._end = time.monotonic() + self._seconds
        self._ended = False
        self._cut: DualformError | None = None

    def cut(self, error: DualformError) -> None:
        """The server ends the call by itself, for this reason."""
        self._cut = error

    def end(self) -> None:
        """The call has ended, whoever ended it."""
        self._ended = True

    def passed(self) -> bool:
        return self._ended or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def error(self) -> DualformError:
        if self._cut is not None:
            return self._cut
        if time.monotonic() < self._end:
            return Cancelled("The caller went away before the answer was ready.")
        return TimedOut(
            f"The answer was not ready within {self._seconds:.3g} s.",
            hint="Ask with fewer queries, give a longer timeout, or start the server with a longer --deadline.",
        )


@dataclass(frozen=True)
class Asker:
    """Who asks, as far as one can be told from others."""

    name: str
    """Of its token, or its connection."""
    half: bool = False
    """Whether it may have half of what there is at most, as there are others who may want the rest."""

    def most(self, places: int) -> int:
        """Of so many places."""
        return max(1, places // 2) if self.half else places


class Holdings(Counter[str]):
    """How much each of many names holds; those that hold nothing are forgotten."""

    def give_back(self, name: str, size: int = 1) -> None:
        self[name] -= size
        if not self[name]:
            del self[name]


class Turn:
    """One wait for one place, in the turns of all who want it together."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.askers = turns, list[Asker]()
        """Those in whose lines it is."""
        self.had: asyncio.Future[Asker] = asyncio.get_running_loop().create_future()
        """The one that has got the place."""

    def join(self, asker: Asker) -> None:
        """From here on it waits in this one's turn, too."""
        if not self.had.done() and asker not in self.askers:
            self.turns.line_up(self, asker)

    async def taken(self) -> Asker:
        """Returns with a place, which is to be given back by the one that is returned."""
        try:
            return await self.had
        except asyncio.CancelledError:
            if self.had.cancelled():
                self.turns.leave(self)
            else:
                self.turns.give_back(self.had.result())
            raise


class Turns:
    """A fixed number of places. Where an asker can have none, the next one goes to whose turn it is."""

    def __init__(self, places: int, each: int | None = None) -> None:
        """`each`: that one asker may have at most."""
        self._places = self._free = places
        self._each = places if each is None else each
        self._held = Holdings()
        """Places, by asker."""
        self._waiting = OrderedDict[Asker, deque[Turn]]()
        """In the order of their turns. While a place is free, none of them may have one more."""

    @property
    def full(self) -> bool:
        """Whether whoever asks now must wait."""
        return not self._free

    @property
    def waiting(self) -> int:
        """How many wait for a place, in each turn of theirs."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def one(self, asker: Asker) -> AsyncIterator[None]:
        """A place, held inside."""
        await self.take(asker)
        try:
            yield
        finally:
            self.give_back(asker)

    async def take(self, asker: Asker) -> None:
        """Returns with a place, which is to be given back."""
        if self._may(asker):
            self._take(asker)
            return
        turn = Turn(self)
        turn.join(asker)
        await turn.taken()

    def give_back(self, asker: Asker) -> None:
        """A place; it goes to the first of the asker whose turn it is."""
        self._free += 1
        self._held.give_back(asker.name)
        while (found := next(filter(self._may, self._waiting), None)) is not None:
            turn = self._waiting[found][0]
            self.leave(turn)
            if not turn.had.done():
                if found in self._waiting:
                    self._waiting.move_to_end(found)
                self._take(found)
                turn.had.set_result(found)

    def line_up(self, turn: Turn, asker: Asker) -> None:
        if self._may(asker):
            self.leave(turn)
            self._take(asker)
            turn.had.set_result(asker)
            return
        self._waiting.setdefault(asker, deque()).append(turn)
        turn.askers.append(asker)

    def leave(self, turn: Turn) -> None:
        """It waits in no line any more."""
        for asker in turn.askers:
            line = self._waiting[asker]
            line.remove(turn)
            if not line:
                del self._waiting[asker]
        turn.askers.clear()

    def _may(self, asker: Asker) -> bool:
        return self._free > 0 and self._held[asker.name] < min(self._each, asker.most(self._places))

    def _take(self, asker: Asker) -> None:
        self._free -= 1
        self._held[asker.name] += 1


class Places:
    """A fixed number of places for questions. A question that finds none is refused at once: queues hide overload."""

    def __init__(self, count: int, what: str, option: str) -> None:
        """`what` takes them; `option` raises their number."""
        self._count, self._what, self._option = count, what, option
        self._held = Holdings()
        """By asker."""

    @contextmanager
    def one(self, asker: Asker) -> Iterator[None]:
        """Hold a place. Raises Overloaded if none is free, or the asker has all that it may have."""
        if self._held.total() >= self._count:
            raise self._refusal(f"{self._count} {self._what}")
        if self._held[asker.name] >= (most := asker.most(self._count)):
            raise self._refusal(f"{most} {self._what} of this token, half of all")
        self._held[asker.name] += 1
        try:
            yield
        finally:
            self._held.give_back(asker.name)

    def _refusal(self, held: str) -> Overloaded:
        return Overloaded(
            f"The server already holds {held}.",
            hint=f"Ask again in a moment, or start it with a larger {self._option}.",
        )


LOOKUPS, LIGHT, UNTRIED, HEAVY, MESSAGES = 4, 4, 2, 2, 2
"""Threads."""
ENGINE_THREADS = LOOKUPS + LIGHT + UNTRIED + HEAVY
"""That may ask the engine at once."""
HEAVY_NICE = 15
"""How much the heavy lane's threads stand back: beside one of them a light one gets 96 parts of a hundred of a core."""

T = TypeVar("T")
Thread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""What does a piece of work in a thread."""


class Lane:
    """Threads of one kind of work. Those who want one take turns, on the loop."""

    def __init__(self, name: str, threads: int, nice: int = 0, each: int | None = None) -> None:
        """`each`: threads that one who asks may have at most."""
        self.name, self._turns, self._nice = name, Turns(threads, each), nice
        self._pool = ThreadPoolExecutor(threads, f"dualform-{name}", self._begin)

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return self._turns.waiting

    async def run(self, work: Callable[[], T], asker: Asker) -> T:
        """What `work` returns. Where the caller is cancelled it runs on, and keeps its thread until it returns."""
        loop, record = asyncio.get_running_loop(), current()

        def noted() -> T:
            with record.work():
                return work()

        await self._turns.take(asker)
        try:
            running = self._pool.submit(noted)
        except BaseException:
            self._turns.give_back(asker)
            raise
        running.add_done_callback(lambda _: _soon(loop, partial(self._turns.give_back, asker)))
        return await asyncio.wrap_future(running)

    @asynccontextmanager
    async def thread(self, turn: Turn) -> AsyncIterator[Thread]:
        """A thread for several pieces of work, one after the other, once it is its `turn`. Whoever holds it is never
        cancelled."""
        asker = await turn.taken()
        try:
            yield self._work
        finally:
            self._turns.give_back(asker)

    def turn(self, askers: Iterable[Asker]) -> Turn:
        """A wait for a thread, in the turns of all of these."""
        turn = Turn(self._turns)
        for asker in askers:
            turn.join(asker)
        return turn

    def close(self) -> None:
        """Returns when no thread works any more."""
        self._pool.shutdown()

    async def _work(self, work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._pool.submit(work))

    def _begin(self) -> None:
        """Of each thread."""
        if self._nice and sys.platform == "linux":
            # On Linux this is the thread's own, and needs no right. Elsewhere threads have none, and the number may be
            # another process's.
            own = threading.get_native_id()
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + self._nice)


class Lanes:
    """Of one server."""

    def __init__(self) -> None:
        workers.start()  # by a thread that does not stand back
        self.lookups = Lane("lookup", LOOKUPS)
        self.light = Lane("light", LIGHT)
        self.untried = Lane("untried", UNTRIED, each=1)
        self.heavy = Lane("heavy", HEAVY, HEAVY_NICE)
        self.messages = Lane("message", MESSAGES)
        self.all = (self.lookups, self.light, self.untried, self.heavy, self.messages)

    def close(self) -> None:
        """Returns when no thread of any works any more."""
        for lane in self.all:
            lane.close()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(call)


KINDS = 4096
"""That are remembered; of more, those that were asked for the longest ago are forgotten."""
LIGHT_SECONDS = 1.0
"""Most of the processor time of its thread, and of its mask's, that a light scan takes. Time on the clock would make
all scans heavy where heavy ones keep the processor busy."""


class ScanCosts:
    """By kind, though only as a number of it is kept: a mask may be long, and a wrong guess costs no more than time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = OrderedDict[int, float]()

    @contextmanager
    def noted(self, kind: Hashable) -> Iterator[None]:
        """Notes what the scan inside takes of this thread, and of those that evaluate its mask."""
        began = _seconds()
        try:
            yield
        except BaseException:
            # What was cut short tells only how much it takes at least.
            if (seconds := _seconds() - began) > LIGHT_SECONDS:
                self._note(kind, seconds)
            raise
        self._note(kind, _seconds() - began)

    def light(self, kind: Hashable) -> bool | None:
        """Whether the last scan of the kind took little; None of a kind that has had none."""
        with self._lock:
            seconds = self._seconds.get(hash(kind))
        return None if seconds is None else seconds <= LIGHT_SECONDS

    def _note(self, kind: Hashable, seconds: float) -> None:
        number = hash(kind)
        with self._lock:
            self._seconds[number] = seconds
            self._seconds.move_to_end(number)
            if len(self._seconds) > KINDS:
                self._seconds.popitem(last=False)


def _seconds() -> float:
    return time.thread_time() + bounds.taken()
