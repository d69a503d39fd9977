"""Places that those who ask take turns in, on one event loop: who asks much waits for itself, not others for it."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
