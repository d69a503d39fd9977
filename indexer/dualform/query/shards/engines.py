"""The engines of a sharded memory: one in front, and one for each shard."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualform.errors import Cancelled, DualformError, TimedOut, Unavailable
from dualform.query.engine import CACHE_BYTES, Engine
from dualform.query.groups import group_entries
from dualform.query.resolved import Resolved, resolve
from dualform.query.score import backends
from dualform.query.search.top_k import top_k
from dualform.query.shards.shards import AskShards, OneShard, ShardQuestion, Shards, without
from dualform.query.sums.group_sum import group_sum
from dualform.query.view import Check, View
from dualform.questions import GroupSum, TopK
from dualform.store.files.segment import SegmentCache
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Part, Snapshot, shard_names


class ShardsMissing(Unavailable):
    """Some shards did not answer."""

    def __init__(self, message: str, shards: Sequence[int], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.shards = tuple(shards)
        """Their numbers."""


class Front(Engine):
    """Answers about one memory, with answers bit for bit those of an engine that reads all of it.

    Absolute sums alone, of groups that change signs, are those to 1e-6. Questions that are not split are answered by
    this process, from the folder. Raises Unavailable, naming the shard, where one does not answer.
    """

    def __init__(
        self,
        memory: Snapshot,
        ask: AskShards,
        backend: backends.Backend,
        cache_bytes: int = CACHE_BYTES,
        segments: SegmentCache | None = None,
    ) -> None:
        self._ask_shards = ask
        super().__init__(memory, backend, cache_bytes, segments)

    def _see(self, memory: Snapshot) -> None:
        super()._see(memory)
        self._view.shards = Shards(self._view, self._ask_shards)

    def _answer(self, question: Any, view: View, check: Check) -> Any:
        if not (isinstance(question, TopK | GroupSum) and question.allow_partial):
            return super()._answer(question, view, check)
        answered: Callable[[Any, Check], Any]
        whole: Resolved[Any]
        if isinstance(question, TopK):
            answered, whole = top_k, resolve(view, question, check)
        else:
            answered, whole = group_sum, resolve(view, question, check)
        missing = set[int]()
        while True:
            own = _less(whole, tuple(sorted(missing)), check)
            try:
                found = answered(own, check)
            except ShardsMissing as error:
                missing.update(error.shards)
                if not _less(whole, tuple(sorted(missing)), check).selection.count:
                    raise
                continue
            names = shard_names(whole.view.snapshot)
            scan = replace(found.scan, missing=tuple(names[number] for number in sorted(missing)))
            return replace(found, scan=scan)


def _less(whole: Resolved[Any], shards: tuple[int, ...], check: Check) -> Resolved[Any]:
    """The question without the slots of some shards."""
    if not shards:
        return whole
    view, layer, by = whole.view, whole.layer, whole.question.by
    selection = without(view, layer, whole.selection, shards)
    groups = group_entries(view, layer, selection, by, check) if by else None
    return replace(whole, selection=selection, groups=groups)


def open_front(path: str | Path, ask: AskShards, backend: str | None = None) -> Front:
    """Raises as `open_memory`."""
    segments = SegmentCache()
    return Front(opened(path, segments), ask, backends.choose(backend), segments=segments)


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
            return Reply(asked.share(self._at(asked), check, *asked.arguments))
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
