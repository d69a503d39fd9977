"""Places that those who ask take turns in, on one event loop: who asks much waits for itself, not others for it."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


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


class Turns:
    """A fixed number of places. Where an asker can have none, the next one goes to whose turn it is."""

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._held = Holdings()
        """Places, by asker."""
        self._waiting = OrderedDict[Asker, deque[asyncio.Future[None]]]()
        """In the order of their turns. While a place is free, none of them may have one more."""

    @property
    def full(self) -> bool:
        """Whether whoever asks now must wait."""
        return not self._free

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
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
        own = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(own)
        try:
            await own
        except asyncio.CancelledError:
            if own.cancelled():
                self._forget(asker, own)
            else:
                self.give_back(asker)
            raise

    def give_back(self, asker: Asker) -> None:
        """A place; it goes to the first of the asker whose turn it is."""
        self._free += 1
        self._held.give_back(asker.name)
        while (found := next(filter(self._may, self._waiting), None)) is not None:
            line = self._waiting.pop(found)
            own = line.popleft()
            if line:
                self._waiting[found] = line
            if not own.done():
                self._take(found)
                own.set_result(None)

    def _may(self, asker: Asker) -> bool:
        return self._free > 0 and self._held[asker.name] < asker.most(self._places)

    def _take(self, asker: Asker) -> None:
        self._free -= 1
        self._held[asker.name] += 1

    def _forget(self, asker: Asker, own: asyncio.Future[None]) -> None:
        line = self._waiting.get(asker, deque())
        with suppress(ValueError):  # its turn may have been passed over already
            line.remove(own)
        if not line:
            self._waiting.pop(asker, None)
