"""Where recorded batches go: through a queue, bounded in bytes, to a sink that works on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias, TypeVar

from dualform.errors import DualformError, RecordingError
from dualform.store.batch import Batch, Ending
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays

QUEUE_BYTES = 256 << 20
"""How much may wait to be written before the training waits too."""

Job: TypeAlias = Callable[[], None]
Result = TypeVar("Result")


class Sink(Protocol):
    """Takes what a recorder records, as the store's writer does. Made and used on one thread."""

    def append(self, batch: Batch) -> None:
        """Take a batch."""

    def tick(self) -> float | None:
        """Called while nothing comes; returns the seconds after which it wants to be called again, None for never."""

    def commit(self) -> None:
        """Make everything appended so far durable."""

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set. Raises BadInput for a name that is taken."""

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """Store what the samples of a dataset looked like. Raises BadInput where that is known already."""

    def close(self, ending: Ending) -> None:
        """The training has ended; everything is durable on return."""

    def abandon(self) -> None:
        """Let go after a failure: nothing more is written."""


class SinkThread:
    """Hands everything to a sink on a thread of its own, in order.

    After a failure the sink gets nothing any more, and everyone who asks is told why.
    """

    def __init__(self, make: Callable[[], Sink], queue_bytes: int = QUEUE_BYTES) -> None:
        """`queue_bytes`: of batches that may wait before `put` waits, too. Raises what making the sink raises."""
        self._limit, self._waiting = queue_bytes, 0
        self._jobs: SimpleQueue[tuple[Job | None, int, bool, Future[BaseException | None]]] = SimpleQueue()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._sink: Sink | None = None
        # A daemon: a training that dies without leaving the recorder must not hang its interpreter. What was
        # committed is whole wherever the thread stops.
        self._thread = threading.Thread(target=self._work, name="dualform-writer", daemon=True)
        self._thread.start()
        try:
            self._do(lambda: self._make(make))
        except BaseException:
            self._stop()
            raise

    def _make(self, make: Callable[[], Sink]) -> None:
        self._sink = make()

    @property
    def sink(self) -> Sink:
        """For its own thread alone, while it runs."""
        assert self._sink is not None
        return self._sink

    def check(self) -> None:
        """Raises what writing failed with: a dualform error as it is, any other as RecordingError."""
        error = self._error
        if isinstance(error, DualformError):
            raise error
        if error is not None:
            raise RecordingError(
                f"writing the memory failed: {type(error).__name__}: {error}.", hint=_hint_of(error)
            ) from error

    def put(self, batch: Batch) -> None:
        """Queue a batch; waits while the queue is full, but for a batch larger than the queue."""
        size = batch.row_bytes + batch.said_bytes
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._waiting or self._waiting + size <= self._limit)
            self.check()
            self._waiting += size
        self._jobs.put((lambda: self.sink.append(batch), size, True, Future()))

    def flush(self) -> None:
        """Returns once every batch is durable. Raises what went wrong with writing."""
        self._do(self.sink.commit)

    def add(self, job: Callable[[Sink], None]) -> None:
        """Have the sink do something behind all batches, as add a query set. Raises BadInput as the sink does."""
        self._do(lambda: job(self.sink), fatal=False)

    def close(self, ending: Ending) -> None:
        """Everything is durable on return, and the thread has ended. Raises what went wrong with writing."""
        try:
            self._do(lambda: self.sink.close(ending))
        except BaseException:
            self._stop()
            with suppress(OSError):  # where one act fails, letting go may fail, too, and say less
                self.sink.abandon()
            raise
        self._stop()

    def _do(self, job: Job, fatal: bool = True) -> None:
        """Run a job behind all earlier ones and wait for it.

        Raises what the job raises, after which none runs any more if it is `fatal`, or if it is no refusal of ours.
        """
        self.check()
        done: Future[BaseException | None] = Future()
        self._jobs.put((job, 0, fatal, done))
        if (error := done.result()) is not None:
            self.check()
            raise error

    def _stop(self) -> None:
        """Let the queued jobs finish and end the thread."""
        self._jobs.put((None, 0, False, Future()))
        self._thread.join()

    def _work(self) -> None:
        """While no job waits, the sink's `tick` is called as often as it asks for."""
        while True:
            seconds = None
            if self._jobs.empty() and self._sink is not None and self._error is None:
                seconds, _ = self._run(self._sink.tick)
            try:
                job, size, fatal, done = self._jobs.get(timeout=seconds)
            except Empty:
                continue
            if job is None:
                return
            done.set_result(self._run(job, size, fatal)[1])
            del job

    def _run(
        self, job: Callable[[], Result], size: int = 0, fatal: bool = True
    ) -> tuple[Result | None, BaseException | None]:
        """What a job returns and raises; after a failure none runs."""
        result, error = None, self._error
        try:
            if error is None:
                result = job()
        except BaseException as raised:  # whatever it is, the training thread is who must hear of it
            error = raised
        with self._changed:
            if error is not None and (fatal or not isinstance(error, DualformError)):
                self._error = error
            self._waiting -= size
            self._changed.notify_all()
        return result, error


def _hint_of(error: BaseException) -> str:
    if isinstance(error, OSError):
        return "The steps committed before are safe. Free disk space or repair the folder, then record again."
    return "The steps committed before are safe. The cause is not the disk: see the error above."
