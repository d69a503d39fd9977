"""Threads for the kinds of work there are: what takes long has few of its own, so that it never holds up what does not.

lookups    descriptions, rows of slots, query sets
light      scans that are known to take little
untried    the first scan of a kind, of which nobody knows yet what it takes: one at a time of one who asks
heavy      everything else: it runs when the processor has nothing better to do
messages   making values of large messages, and messages of large answers
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from dualform.kernels import workers
from dualform_service.call_record import current
from dualform_service.turns import Asker, Turn, Turns

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
