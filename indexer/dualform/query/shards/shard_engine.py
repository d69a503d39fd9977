"""Answers for one shard of a memory: what runs on each machine, in a process of its own."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualform.errors import Cancelled, DualformError, TimedOut, Unavailable
from dualform.query.engine import CACHE_BYTES, Engine
from dualform.query.score import backends
from dualform.query.shards.shards import ShardQuestion
from dualform.query.shards.share import OneShard
from dualform.query.view import View
from dualform.store.part import Part, shard_names
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot

_NAMES = 1000
"""Of shares that were given up, the last ones of which a shard knows: most have been answered by then."""


@dataclass(frozen=True, eq=False)
class Reply:
    """What a shard says to what it is asked: errors travel as values, so that none is taken for a process that died."""

    answer: Any = None
    error: DualformError | None = None


class ShardEngine(Engine):
    """The engine of a whole memory, of which it reads the rows of one shard alone when it is asked for a share."""

    def __init__(
        self, memory: Snapshot, number: int, backend: backends.Backend, segments: SegmentCache | None = None
    ) -> None:
        self._number = number
        self._given_up = OrderedDict[str, None]()
        """Names of shares that nobody waits for, in the order in which that was heard."""
        self._naming = threading.Lock()
        super().__init__(memory, backend, CACHE_BYTES, segments)

    def _see(self, memory: Snapshot) -> None:
        super()._see(memory)
        part = Part(memory, self._number)
        self._shard = OneShard(self._view, View(part, self._backend, self._cache_bytes, self.tally), part)

    def reply(self, asked: ShardQuestion | None, seconds: float) -> Reply:
        """The answer to a share; or why there is none, for example because so many seconds have passed, or because it
        was given up. To nothing, nothing.
        """
        if asked is None:
            return Reply()
        end = time.monotonic() + seconds

        def check() -> None:
            if asked.name in self._given_up:
                raise Cancelled("the share was given up before it was answered.")
            if time.monotonic() >= end:
                raise TimedOut(f"the share was not answered within {seconds:.3g} s.")

        try:
            check()
            return Reply(asked.share.answer(self._at(asked), check))
        except DualformError as error:
            return Reply(error=error)
        finally:
            with self._naming:
                self._given_up.pop(asked.name, None)

    def give_up(self, name: str) -> None:
        """Nobody waits for the share of that name any more: its work ends, or does not begin. From any thread."""
        with self._naming:
            self._given_up[name] = None
            if len(self._given_up) > _NAMES:
                self._given_up.popitem(last=False)

    def _at(self, asked: ShardQuestion) -> OneShard:
        """Raises Unavailable where the memory cannot be seen as whoever asks sees it."""
        shard = self._shard
        if shard.whole.snapshot.moment != asked.moment:
            self.refresh()
            shard = self._shard
        if shard.whole.snapshot.moment != asked.moment:
            raise Unavailable(
                "the memory moved on while its shards were asked.",
                hint="Ask again in a moment; a training that still runs is best asked on one machine.",
            )
        return shard


def open_shard(path: str | Path, number: int, backend: str | None = None) -> ShardEngine:
    """The answerer of the shard of that number, as `shard_names` lists them. Raises as `open_memory`."""
    segments = SegmentCache()
    return ShardEngine(opened(path, segments), number, backends.choose(backend), segments)


def names_of_shards(path: str | Path) -> list[str]:
    """The shards of the memory in a folder, in order. Raises NotAMemory and Damaged."""
    return shard_names(opened(path))
