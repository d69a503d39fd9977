"""Places that those who ask take turns in, on one event loop: who asks much waits for itself, not others for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Turns:
    """A fixed number of places. Where none is free, the next one goes to the asker whose turn it is."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()
        """By asker, in the order of their turns."""

    @property
    def full(self) -> bool:
        """Whether whoever asks now must wait."""
        return bool(self._waiting) or not self._free

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def one(self, asker: str) -> AsyncIterator[None]:
        """A place, held inside."""
        await self.take(asker)
        try:
            yield
        finally:
            self.give_back()

    async def take(self, asker: str) -> None:
        """Returns with a place, which is to be given back."""
        if not self.full:
            self._free -= 1
            return
        own = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(own)
        try:
            await own
        except asyncio.CancelledError:
            if own.cancelled():
                self._forget(asker, own)
            else:
                self.give_back()
            raise

    def give_back(self) -> None:
        """A place; it goes to the first of the asker whose turn it is."""
        while self._waiting:
            asker, line = self._waiting.popitem(last=False)
            own = line.popleft()
            if line:
                self._waiting[asker] = line
            if not own.done():
                own.set_result(None)
                return
        self._free += 1

    def _forget(self, asker: str, own: asyncio.Future[None]) -> None:
        line = self._waiting.get(asker, deque())
        with suppress(ValueError):  # its turn may have been passed over already
            line.remove(own)
        if not line:
            self._waiting.pop(asker, None)
