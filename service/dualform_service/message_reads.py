"""Who may have a message on its way: each may take a whole request's bytes before it is there, or never come."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import grpc.aio

from dualform_service.scheduling import Asker, Turns
from dualform_service.transport import Context


class MessageReads:
    """A fixed number of messages on their way, on one event loop. Connections take turns; while others wait, what has
    been coming for longer than `patience` ends, oldest first.

    A message that is there already is read within milliseconds. So calls that send none hold nobody up for long,
    however many there are, and messages that take their time may do so where nobody else wants to be read.
    """

    def __init__(self, most: int, patience: float) -> None:
        """`patience` in seconds."""
        self._turns, self._patience = Turns(most), patience
        self._reading = OrderedDict[asyncio.Timeout, float]()
        """Since when, oldest first."""
        self._ending: asyncio.TimerHandle | None = None
        self._coming = dict[str, dict[asyncio.Timeout, None]]()
        """All that are read or wait for it, by connection, oldest first."""
        self._told = dict[asyncio.Timeout, asyncio.Future[None]]()
        """Of those that give way: who waits for their end."""

    @property
    def waiting(self) -> int:
        """How many wait for their turn to be read."""
        return self._turns.waiting

    async def read(self, context: Context, seconds: float | None) -> bytes | None:
        """The next message of a call; None where no more comes. Raises TimeoutError where it takes too long."""
        async with asyncio.timeout(seconds) as limit:
            peer = context.peer()
            self._coming.setdefault(peer, {})[limit] = None
            try:
                async with self.one(peer, limit):
                    message: Any = await _to_its_end(context)
            finally:
                self._forget(peer, limit)
                if (told := self._told.pop(limit, None)) is not None and not told.done():
                    told.set_result(None)
        return None if message is grpc.aio.EOF else bytes(message)

    async def give_way(self, connection: str) -> bool:
        """Ends the oldest read of the connection that has the most, for one more of `connection`; returns once it has
        ended. False where no other has more than this one."""
        peer, most = max(self._coming.items(), key=lambda own: len(own[1]), default=("", {}))
        if len(most) <= len(self._coming.get(connection, ())):
            return False
        oldest, loop = next(iter(most)), asyncio.get_running_loop()
        self._forget(peer, oldest)
        told = self._told[oldest] = loop.create_future()
        if not oldest.expired():
            oldest.reschedule(loop.time())
        await told
        return True

    def _forget(self, peer: str, limit: asyncio.Timeout) -> None:
        own = self._coming.get(peer, {})
        own.pop(limit, None)
        if not own:
            self._coming.pop(peer, None)

    @asynccontextmanager
    async def one(self, connection: str, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Held while a message is read. `limit`, inside which the caller is, passes early where others want to read."""
        if self._turns.full:
            self._press()
        async with self._turns.one(Asker(connection)):
            self._reading[limit] = asyncio.get_running_loop().time()
            if self._turns.waiting:
                self._press()
            try:
                yield
            finally:
                del self._reading[limit]

    def _press(self) -> None:
        """See to it that the oldest ends in time for whoever waits."""
        loop = asyncio.get_running_loop()
        if self._ending is None:
            began = next((began for limit, began in self._reading.items() if (limit.when() or inf) > loop.time()), None)
            if began is not None:
                self._ending = loop.call_at(began + self._patience, self._end_oldest)

    def _end_oldest(self) -> None:
        """One for each that waits."""
        self._ending = None
        now = asyncio.get_running_loop().time()
        for limit, began in list(self._reading.items())[: self._turns.waiting]:
            if began + self._patience > now:
                break
            if not limit.expired():
                limit.reschedule(now)
        if self._turns.waiting:
            self._press()


async def _to_its_end(context: Context) -> Any:
    """The next message. Reading goes on where nobody waits for it any more, until the transport ends it with its call:
    grpc.aio keeps for good what it set aside for a read whose task was cancelled (grpc issue 43360)."""
    reading = asyncio.ensure_future(context.read())
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
        raise
