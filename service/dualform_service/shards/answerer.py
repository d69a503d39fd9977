"""What the front asks of whoever answers for one shard, wherever its process runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from dualform.query.shards.shard_engine import Reply
from dualform.query.shards.shards import ShardQuestion


class ShardAnswerer(Protocol):
    """A process that keeps a dualform.query.shards.shard_engine.ShardEngine of one shard."""

    def ask(self, asked: ShardQuestion | None, seconds: float) -> Future[Reply]:
        """What the engine's `reply` gives; any error means that the process is gone. Returns at once. None asks whether
        the process is ready.

        The process gives the share up after so many seconds. The front keeps that deadline itself, too: a process that
        was stopped says nothing.
        """
        ...

    def give_up(self, name: str) -> None:
        """Nobody waits for what was asked under that name any more: the engine's `give_up`, while it works. Returns at
        once.
        """
        ...

    def close(self) -> None:
        """End the process, whatever state it is in. May take its time."""
        ...


Launch: TypeAlias = Callable[[int], ShardAnswerer]
"""Starts a process for the shard of that number. Returns at once: the answerer may be asked before it is ready."""
