"""The shards of a memory as processes that are started, asked and replaced, and such processes on a Ray cluster.

Ray starts processes on its machines and carries bytes; that is all. It listens on every address of a machine, whatever
address it is told (measured with Ray 2.60): its machines belong into a network that nobody else reaches. The folder of
the memory must be there on all of them under the same path, and so must dualform.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from dualform.errors import BadInput, DualformError, TimedOut, Unavailable
from dualform.extras import optional
from dualform.query.shards.engines import (
    Front,
    Reply,
    ShardEngine,
    ShardsMissing,
    names_of_shards,
    open_front,
    open_shard,
)
from dualform.query.shards.shards import ShardQuestion
from dualform.query.view import Check


class ShardAnswerer(Protocol):
    """A process that keeps a dualform.query.shards.engines.ShardEngine of one shard."""

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


SECONDS = 60.0
"""For a share, if nothing else is said."""
START_SECONDS = 120.0
"""In which a process has to begin to answer. It reads tables before: replaced sooner, it would never be done."""
_GRACE = 0.05
"""Seconds beyond the deadline, in which a process that works says itself that it gave up."""
_LOOK = 0.05
"""Seconds between looks whether somebody still waits for the answer."""

_log = logging.getLogger("dualform.service")


@dataclass(eq=False)
class _Member:
    """An answerer, and whether it has begun to answer."""

    answerer: ShardAnswerer
    started: float = field(default_factory=time.monotonic)
    ready: Future[Reply] = field(init=False)

    def __post_init__(self) -> None:
        self.ready = self._asked(None, START_SECONDS)

    @property
    def starting(self) -> bool:
        return not self.ready.done() and time.monotonic() - self.started < START_SECONDS

    def ask(self, asked: ShardQuestion, end: float) -> Future[Reply]:
        """Sent once it is ready, unless `end` has passed by then: what nobody waits for must not keep it from work."""
        answer = Future[Reply]()

        def send(ready: Future[Reply]) -> None:
            left = end - time.monotonic()
            if left > 0 and not answer.cancelled():
                sent = ready if _failed(ready) else self._asked(asked, left)
                sent.add_done_callback(lambda done: _pass_on(done, answer))

        self.ready.add_done_callback(send)
        return answer

    def give_up(self, asked: ShardQuestion, answer: Future[Reply]) -> None:
        """Nobody waits for this answer any more."""
        answer.cancel()
        if self.ready.done():  # else it was not sent, and is not sent any more
            with suppress(Exception):  # a process that is gone works no longer
                self.answerer.give_up(asked.name)

    def _asked(self, asked: ShardQuestion | None, seconds: float) -> Future[Reply]:
        try:
            return self.answerer.ask(asked, seconds)
        except Exception as error:  # a process that is known to be gone
            failed = Future[Reply]()
            failed.set_exception(error)
            return failed


class Fleet(AbstractContextManager["Fleet"]):
    """Is what a Front asks (dualform.query.shards.engines). Safe to use from several threads."""

    def __init__(self, launch: Launch, names: Callable[[], Sequence[str]], seconds: float = SECONDS) -> None:
        """`names`: reads those of the shards, by which errors call them; called again when one is asked that came
        later. `seconds`: in which a share must be answered.
        """
        if not seconds > 0:
            raise BadInput(
                f"seconds must be above 0, not {seconds!r}.", hint="For example --shard-deadline 60.", field="seconds"
            )
        self._launch, self._read_names, self._seconds = launch, names, seconds
        self._names = list(names())
        self._lock = threading.Lock()
        self._closed = False
        self._members = dict[int, _Member]()
        """By the number of their shard. One that is missing is started when its shard is asked."""
        try:
            for number in range(len(self._names)):
                self._members[number] = _Member(launch(number))
        except BaseException:
            self.close()
            raise

    def __call__(self, asked: ShardQuestion, shards: Sequence[int], check: Check) -> dict[int, Any]:
        """The answers of some shards, all of them.

        Raises ShardsMissing within the deadline where one is gone or says nothing, what a shard raises of its share,
        and what `check` raises. What the others work on is given up then.
        """
        end = time.monotonic() + self._seconds
        if new := [number for number in shards if number >= len(self._names)]:
            self._grow(new)
        members = {number: self._member(number) for number in shards}
        futures = {member.ask(asked, end): number for number, member in members.items()}
        try:
            return self._answers(futures, members, end + _GRACE, check)
        finally:
            for future, number in futures.items():
                if not future.done():
                    members[number].give_up(asked, future)

    def _answers(
        self, futures: Mapping[Future[Reply], int], members: Mapping[int, _Member], end: float, check: Check
    ) -> dict[int, Any]:
        """What is asked of each shard, by its number. Raises as `__call__`."""
        pending, found = set(futures), dict[int, Any]()
        while pending:
            check()
            left = end - time.monotonic()
            done, pending = wait(pending, max(0.0, min(_LOOK, left)), FIRST_COMPLETED)
            if gone := {futures[future]: future.exception() for future in done if _failed(future)}:
                for number, error in gone.items():
                    _log.warning("the process of %s failed", self._names[number], exc_info=error)
                raise self._replaced({number: members[number] for number in gone}, "went away before it answered.")
            for future in done:
                found[futures[future]] = self._answer_of(future.result(), futures[future])
            if pending and time.monotonic() >= end:
                silent = [futures[future] for future in pending]
                raise self._replaced({number: members[number] for number in silent}, self._late)
        return found

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
            members, self._members = self._members, {}
        for member in members.values():
            member.answerer.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _late(self) -> str:
        return f"did not answer within {self._seconds:.3g} s."

    def _answer_of(self, reply: Reply, number: int) -> Any:
        """Raises what the shard raised; ShardsMissing where it works, but gave up."""
        error = reply.error
        if isinstance(error, TimedOut):
            hint = "Ask with fewer queries, or start the server with a longer --shard-deadline."
            raise ShardsMissing(f"{self._names[number]} {self._late}", [number], hint=hint)
        if isinstance(error, Unavailable):
            raise ShardsMissing(f"{self._names[number]}: {error.message}", [number], hint=error.hint)
        if error is not None:
            raise error
        return reply.answer

    def _grow(self, new: Sequence[int]) -> None:
        """Know shards that came since: the training was resumed in the memory's folder, as a further run."""
        names = list(self._read_names())
        with self._lock:
            if len(names) > len(self._names):
                self._names = names
        if missing := [number for number in new if number >= len(names)]:
            hint = "The folder was replaced: ask again in a moment."
            raise ShardsMissing(f"the memory now has {len(names)} shards.", missing, hint=hint)

    def _member(self, number: int) -> _Member:
        """That of a shard, started where the last try failed."""
        with self._lock:
            if self._closed:
                raise ShardsMissing("the memory was closed.", [number], hint="Open it again.")
            member = self._members.get(number)
            if member is None:
                try:
                    member = self._members[number] = _Member(self._launch(number))
                except Exception as error:
                    _log.error("no process for %s", self._names[number], exc_info=error)
                    raise ShardsMissing(f"{self._names[number]} could not be started: {error}", [number]) from error
            return member

    def _replaced(self, members: Mapping[int, _Member], what: str) -> ShardsMissing:
        """The error that names some shards. Each gets another process, unless it is starting and only late."""
        names = ", ".join(self._names[number] for number in sorted(members))
        _log.warning("%s %s", names, what)
        for number, member in members.items():
            if not (what == self._late and member.starting):
                self._replace(number, member)
        hint = "Another process is starting: ask again in a moment, or allow a partial answer."
        return ShardsMissing(f"{names} {what}", sorted(members), hint=hint)

    def _replace(self, number: int, old: _Member) -> None:
        """Start another process and put the old one away, which may take its time, while the asker gets its error."""
        with self._lock:
            if self._members.get(number) is not old:
                return  # whoever asked at the same time has done it, or all were closed
            del self._members[number]
        threading.Thread(target=self._renew, args=(number, old), name="dualform-renew", daemon=True).start()

    def _renew(self, number: int, old: _Member) -> None:
        with suppress(ShardsMissing):  # the next question tries again, and says why it cannot be done
            self._member(number)
        try:
            old.answerer.close()
        except Exception as error:
            _log.warning("a process that was replaced could not be ended", exc_info=error)


def _failed(future: Future[Reply]) -> bool:
    return future.cancelled() or future.exception() is not None


def _pass_on(done: Future[Reply], answer: Future[Reply]) -> None:
    if not answer.set_running_or_notify_cancel():
        return  # it was given up
    if _failed(done):
        answer.set_exception(ConnectionError("the process is gone") if done.cancelled() else done.exception())
    else:
        answer.set_result(done.result())


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
    folder = str(Path(path).absolute())
    # One is kept in reserve, whose process has imported all it needs: most of what starting one takes.
    reserve = actor.remote(folder, backend)

    def launch(number: int) -> ShardAnswerer:
        nonlocal reserve
        own, reserve = reserve, actor.remote(folder, backend)
        own.open.remote(number)
        return RayAnswerer(ray, own)

    return launch


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
