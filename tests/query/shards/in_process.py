"""A front whose answerers are in this process: the same shares and merging, without processes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from dualform.query.score.backends import choose
from dualform.query.shards.engines import Front, ShardEngine, ShardsMissing
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot, shard_names


class InProcess:
    """Asks engines of this process; shares and answers are pickled, as they are between processes."""

    def __init__(self, memory: Snapshot, backend: str | None = "numpy") -> None:
        self.names = shard_names(memory)
        self.engines = [ShardEngine(memory, number, choose(backend)) for number in range(len(self.names))]
        self.dead: set[int] = set()
        self.asked: list[tuple[object, tuple[int, ...]]] = []
        """Each share's function, and the shards that it went to."""

    def __call__(self, asked, shards: Sequence[int], check):
        self.asked.append((asked.share, tuple(shards)))
        if gone := self.dead.intersection(shards):
            raise ShardsMissing(f"{', '.join(self.names[n] for n in sorted(gone))} did not answer.", sorted(gone))
        replies = {n: self.engines[n].reply(pickle.loads(pickle.dumps(asked)), 60.0) for n in shards}
        for reply in replies.values():
            if reply.error is not None:
                raise reply.error
        return {n: pickle.loads(pickle.dumps(reply.answer)) for n, reply in replies.items()}


def front_of(memory: Path | Snapshot, backend: str | None = "numpy") -> tuple[Front, InProcess]:
    """A front over a memory, and its answerers."""
    snapshot = opened(memory) if isinstance(memory, Path) else memory
    shards = InProcess(snapshot, backend)
    return Front(snapshot, shards, choose(backend)), shards
