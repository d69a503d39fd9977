"""Who may have a message on its way: each may take a whole request's bytes before it is there, or never come."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio

from dualform_service.transport import Context


class Readers:
    """A fixed number of messages on their way, on one event loop. Connections take turns; while others wait, what has
    been coming for longer than `patience` ends, oldest first.

    A message that is there already is read within milliseconds. So calls that send none hold nobody up for long,
    however many there are, and messages that take their time may do so where nobody else wants to be read.
    """

    def __init__(self, most: int, patience: float) -> None:
        """`patience` in seconds."""
        self._free, self._patience = most, patience
        self._reading = OrderedDict[asyncio.Timeout, float]()
        """Since when, oldest first."""
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()
        """By connection, in the order of their turns."""
        self._ending: asyncio.TimerHandle | None = None

    async def read(self, context: Context, seconds: float | None) -> bytes | None:
        """The next message of a call; None where no more comes. Raises TimeoutError where it takes too long."""
        async with asyncio.timeout(seconds) as limit, self.one(context.peer(), limit):
            message: Any = await context.read()
        return None if message is grpc.aio.EOF else bytes(message)

    @asynccontextmanager
    async def one(self, connection: str, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Held while a message is read. `limit`, inside which the caller is, passes early where others want to read."""
        if self._waiting or not self._free:
            await self._turn(connection)
        else:
            self._free -= 1
        self._reading[limit] = asyncio.get_running_loop().time()
        self._press()
        try:
            yield
        finally:
            del self._reading[limit]
            self._give_place()

    async def _turn(self, connection: str) -> None:
        own = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append(own)
        self._press()
        try:
            await own
        except asyncio.CancelledError:
            if own.cancelled():
                self._forget(connection, own)
            else:
                self._give_place()
            raise

    def _forget(self, connection: str, own: asyncio.Future[None]) -> None:
        line = self._waiting.get(connection, deque())
        with suppress(ValueError):  # its turn may have been passed over already
            line.remove(own)
        if not line:
            self._waiting.pop(connection, None)

    def _give_place(self) -> None:
        """To the first of the connection whose turn it is."""
        while self._waiting:
            connection, line = self._waiting.popitem(last=False)
            own = line.popleft()
            if line:
                self._waiting[connection] = line
            if not own.done():
                own.set_result(None)
                return
        self._free += 1

    def _press(self) -> None:
        """See to it that the oldest ends in time for whoever waits."""
        if self._waiting and self._reading and self._ending is None:
            began = next(iter(self._reading.values()))
            self._ending = asyncio.get_running_loop().call_at(began + self._patience, self._end_oldest)

    def _end_oldest(self) -> None:
        """One for each that waits."""
        self._ending = None
        now = asyncio.get_running_loop().time()
        waiting = sum(map(len, self._waiting.values()))
        for limit, began in list(self._reading.items())[:waiting]:
            if began + self._patience > now:
                break
            if not limit.expired():
                limit.reschedule(now)
