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


class Turn:
    """One wait for room, in the lines of all who want it together."""

    def __init__(self, room: FairSemaphore, size: int = 1) -> None:
        self.room, self.size, self.askers = room, size, list[Asker]()
        """`askers`: those in whose lines it is."""
        self.had: asyncio.Future[Asker] = asyncio.get_running_loop().create_future()
        """The one that has got the room."""

    def join(self, asker: Asker) -> None:
        """From here on it waits in this one's turn, too."""
        if not self.had.done() and asker not in self.askers:
            self.room.line_up(self, asker)

    async def taken(self) -> Asker:
        """Returns with the room, which is to be given back by the one that is returned."""
        try:
            return await self.had
        except asyncio.CancelledError:
            if self.had.cancelled():
                self.room.leave(self)
            else:
                self.room.give_back(self.had.result(), self.size)
            raise


class FairSemaphore:
    """A fixed number of places or bytes, on one event loop. Those that find none free take turns; whoever has its share
    (`Asker.most`) keeps nobody else waiting. An asker that holds nothing may have any size.
    """

    def __init__(self, size: int, each: int | None = None) -> None:
        """`each`: what one asker may have at most."""
        self._size = self.free = size
        self._each = size if each is None else each
        self._held = Counter[str]()
        """By asker; those that hold nothing are forgotten."""
        self._waiting = OrderedDict[Asker, deque[Turn]]()
        """In the order of their turns."""

    @property
    def waiting(self) -> int:
        """How many wait, in each turn of theirs."""
        return sum(map(len, self._waiting.values()))

    def take_now(self, asker: Asker, size: int = 1) -> bool:
        """Whether there was room. What others wait for and may have is theirs first."""
        fits = size <= self.free and asker not in self._waiting and self._within(asker, size)
        if not fits or self._next() is not None:
            return False
        self._take(asker, size)
        return True

    @asynccontextmanager
    async def one(self, asker: Asker) -> AsyncIterator[None]:
        """A place, held inside."""
        await self.take(asker)
        try:
            yield
        finally:
            self.give_back(asker)

    async def take(self, asker: Asker, size: int = 1) -> None:
        """Returns once there is room, which is to be given back."""
        turn = Turn(self, size)
        turn.join(asker)
        await turn.taken()

    def give_back(self, asker: Asker, size: int = 1) -> None:
        self.free += size
        self._held[asker.name] -= size
        if not self._held[asker.name]:
            del self._held[asker.name]
        self._serve()

    def line_up(self, turn: Turn, asker: Asker) -> None:
        if self.take_now(asker, turn.size):
            self._remove(turn)
            turn.had.set_result(asker)
        else:
            self._waiting.setdefault(asker, deque()).append(turn)
            turn.askers.append(asker)

    def leave(self, turn: Turn) -> None:
        """It waits in no line any more; whoever waited behind it may be next."""
        self._remove(turn)
        self._serve()

    def _remove(self, turn: Turn) -> None:
        for asker in turn.askers:
            line = self._waiting[asker]
            line.remove(turn)
            if not line:
                del self._waiting[asker]
        turn.askers.clear()

    def _within(self, asker: Asker, size: int) -> bool:
        """Whether so much more is within the asker's share."""
        held = self._held[asker.name]
        return not held or held + size <= min(self._each, asker.most(self._size))

    def _next(self) -> Asker | None:
        """Whose turn it is."""
        return next((asker for asker, line in self._waiting.items() if self._within(asker, line[0].size)), None)

    def _take(self, asker: Asker, size: int) -> None:
        self.free -= size
        self._held[asker.name] += size

    def _serve(self) -> None:
        """What is free goes to those whose turn it is; a large wish is not passed over for smaller ones."""
        while (asker := self._next()) is not None and (turn := self._waiting[asker][0]).size <= self.free:
            self._remove(turn)
            if not turn.had.done():  # it may have been cancelled just now
                if asker in self._waiting:
                    self._waiting.move_to_end(asker)
                self._take(asker, turn.size)
                turn.had.set_result(asker)


class Places:
    """A fixed number of places for questions. A question that finds none is refused at once: queues hide overload."""

    def __init__(self, count: int, what: str, option: str) -> None:
        """`what` takes them; `option` raises their number."""
        self._count, self._what, self._option = count, what, option
        self._room = FairSemaphore(count)

    @contextmanager
    def one(self, asker: Asker) -> Iterator[None]:
        """Hold a place. Raises Overloaded if none is free, or the asker has all that it may have."""
        if not self._room.take_now(asker):
            share = f"{asker.most(self._count)} {self._what} of this token, half of all"
            raise Overloaded(
                f"The server already holds {share if self._room.free else f'{self._count} {self._what}'}.",
                hint=f"Ask again in a moment, or start it with a larger {self._option}.",
            )
        try:
            yield
        finally:
            self._room.give_back(asker)


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
        self.name, self._turns, self._nice = name, FairSemaphore(threads, each), nice
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
