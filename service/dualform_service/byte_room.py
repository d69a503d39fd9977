"""How many bytes a server holds at once, of questions or of answers that nobody has read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from dualform_service.scheduling import Asker, Holdings


class ByteRoom:
    """So many bytes that may be held at once, on one event loop; an asker may have its share of them (`Asker.most`)."""

    def __init__(self, size: int) -> None:
        self._size = self.free = size
        self._held = Holdings()
        """By asker."""
        self._waiting = deque[tuple[int, Asker, asyncio.Future[None]]]()

    def take_now(self, size: int, asker: Asker) -> bool:
        """Whether there was room for so many."""
        if size > self.free or not self._may(size, asker):
            return False
        if any(who.name == asker.name or self._may(wanted, who) for wanted, who, _ in self._waiting):
            return False  # it is theirs first
        self._take(size, asker)
        return True

    async def take(self, size: int, asker: Asker) -> None:
        """Returns once there is room, first come, first served; who has its share keeps nobody else waiting."""
        if self.take_now(size, asker):
            return
        own = asyncio.get_running_loop().create_future()
        entry = size, asker, own
        self._waiting.append(entry)
        try:
            await own
        except asyncio.CancelledError:
            if own.cancelled():
                with suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove(entry)
                self._serve()
            else:
                self.give_back(size, asker)
            raise

    def give_back(self, size: int, asker: Asker) -> None:
        self.free += size
        self._held.give_back(asker.name, size)
        self._serve()

    def _serve(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        full, behind = False, set[str]()
        for entry in waiting:
            size, asker, own = entry
            if own.done():
                continue
            if full or asker.name in behind or not self._may(size, asker):
                behind.add(asker.name)
            elif size > self.free:
                full = True
            else:
                self._take(size, asker)
                own.set_result(None)
                continue
            self._waiting.append(entry)

    def _may(self, size: int, asker: Asker) -> bool:
        """Whether so many more are within the asker's share; whoever has none may have any number."""
        held = self._held[asker.name]
        return not held or held + size <= asker.most(self._size)

    def _take(self, size: int, asker: Asker) -> None:
        self.free -= size
        self._held[asker.name] += size


class NoRoom(Exception):
    """So many bytes are wanted, and others hold them."""

    def __init__(self, size: int) -> None:
        self.size = size


class Holding:
    """What one answer holds of a room."""

    def __init__(self, room: ByteRoom, asker: Asker) -> None:
        self._room, self._asker, self._size = room, asker, 0

    def hold_now(self, size: int) -> None:
        """Holds so many at least from here on. Raises NoRoom, and then holds what it held."""
        if size > self._size:
            if not self._room.take_now(size - self._size, self._asker):
                raise NoRoom(size)
            self._size = size

    async def hold(self, size: int) -> None:
        """Returns once it holds so many, and nothing meanwhile, so that no two wait for each other."""
        self.release()
        await self._room.take(size, self._asker)
        self._size = size

    def release(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._room.give_back(size, self._asker)
