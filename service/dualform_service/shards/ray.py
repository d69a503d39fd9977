"""Answerers as actors of Ray, one a shard. Ray starts processes on its machines and carries bytes; that is all.

Ray listens on every address of a machine, whatever address it is told (measured with Ray 2.60): its machines belong
into a network that nobody else reaches. The folder of the memory must be there on all of them under the same path, and
so must dualform.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualform.errors import DualformError, TimedOut
from dualform.extras import optional
from dualform.query.shards.front import Front, open_front
from dualform.query.shards.shard_engine import Reply, ShardEngine, names_of_shards, open_shard
from dualform.query.shards.shards import ShardQuestion
from dualform_service.shards.fleet import SECONDS, Fleet, Launch, ShardAnswerer

QUESTIONS = 8
"""That an actor works on at once."""
_GIVE_UP = "giving up"
"""The actor's thread that hears what it is to give up, however many questions it works on."""


class _Actor:
    """Answers for a shard once it is told for which one. Opens it when it is first asked, and again where that failed.

    What is wrong with the folder is said to whoever asks. Any other error is raised, so that the actor is replaced.
    """

    def __init__(self, path: str, backend: str | None) -> None:
        self._path, self._backend = path, backend
        self._number: Future[int] = Future()
        self._engine: ShardEngine | None = None
        self._opening = threading.Lock()

    def open(self, number: int) -> None:
        self._number.set_result(number)

    def reply(self, asked: ShardQuestion | None, seconds: float) -> Reply:
        end = time.monotonic() + seconds
        try:
            engine = self._opened(end)
        except DualformError as error:
            return Reply(error=error)
        return engine.reply(asked, max(0.0, end - time.monotonic()))

    def give_up(self, name: str) -> None:
        if self._engine is not None:  # else no share has come
            self._engine.give_up(name)

    def _opened(self, end: float) -> ShardEngine:
        late = TimedOut("the shard is still being opened.")
        try:
            number = self._number.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise late from None
        if not self._opening.acquire(timeout=max(0.0, end - time.monotonic())):
            raise late
        try:
            if self._engine is None:
                self._engine = open_shard(self._path, number, self._backend)
            return self._engine
        finally:
            self._opening.release()


class RayAnswerer:
    """ShardAnswerer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def ask(self, asked: ShardQuestion | None, seconds: float) -> Future[Reply]:
        future: Future[Reply] = self._actor.reply.remote(asked, seconds).future()
        return future

    def give_up(self, name: str) -> None:
        self._actor.give_up.options(concurrency_group=_GIVE_UP).remote(name)

    def close(self) -> None:
        """Of a frozen process Ray takes some seconds."""
        self._ray.kill(self._actor, no_restart=True)


def ray_answerers(
    path: str | Path,
    address: str | None = None,
    backend: str | None = None,
    questions: int = QUESTIONS,
    **settings: Any,
) -> Launch:
    """Starts actors that answer for the shards of the memory at `path`, spread over the machines of a Ray cluster.

    `questions`: how many are asked at once, at most; a further one waits, and looks as if its actor said nothing.

    `address`: of the cluster, as ray.init takes it; None for that of the environment, or for one of this machine's own,
    which is started. `settings` go to ray.init, unless Ray was initialised before. Raises MissingPackage.
    """
    ray = optional("ray")
    if not ray.is_initialized():
        ray.init(address, **{"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", **settings})
    # No restart: the front starts another one at once, which takes less than Ray's own look at what died.
    actor = ray.remote(
        num_cpus=0,
        max_restarts=0,
        max_concurrency=questions,
        concurrency_groups={_GIVE_UP: 1},
        scheduling_strategy="SPREAD",
    )(_Actor)
    return _Launch(ray, lambda: actor.remote(str(Path(path).absolute()), backend))


class _Launch:
    """Keeps one actor in reserve, whose process has imported all it needs: most of what starting one takes."""

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray, self._start = ray, start
        self._reserve = start()

    def __call__(self, number: int) -> ShardAnswerer:
        actor, self._reserve = self._reserve, self._start()
        actor.open.remote(number)
        return RayAnswerer(self._ray, actor)


@contextmanager
def opened_on_ray(
    path: str | Path, address: str | None = None, seconds: float = SECONDS, questions: int = QUESTIONS
) -> Iterator[Front]:
    """An engine in front of actors that answer for the shards of the memory at `path`.

    `seconds`: in which an actor must say its share; one that misses that is replaced. The other arguments are those of
    `ray_answerers`. Raises as dualform.open, and MissingPackage.
    """
    launch = ray_answerers(path, address, questions=questions)
    with Fleet(launch, lambda: names_of_shards(path), seconds) as fleet, open_front(path, fleet) as front:
        yield front
