"""The engine in front of a memory's shards: it asks others for what takes reading all rows, and merges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dualform.errors import Unavailable
from dualform.query.engine import CACHE_BYTES, Engine
from dualform.query.groups import group_entries
from dualform.query.resolved import Resolved, resolve
from dualform.query.score import backends
from dualform.query.search.top_k import top_k
from dualform.query.shards.shards import AskShards, Shards
from dualform.query.shards.share import without
from dualform.query.sums.group_sum import group_sum
from dualform.query.view import Check, View
from dualform.questions import GroupSum, TopK
from dualform.store.part import shard_names
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot


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
