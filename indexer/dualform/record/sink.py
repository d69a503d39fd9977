"""Where recorded batches go: through a queue, bounded in bytes, to a sink that works on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeAlias

from dualform.errors import DualformError, RecordingError
from dualform.store.batch import Batch, Ending
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays

QUEUE_BYTES = 256 << 20
"""How much may wait to be written before the training waits too."""

Job: TypeAlias = Callable[[], None]


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
        self._limit = queue_bytes
        self._waiting = 0
        self._jobs: deque[tuple[Job | None, int, bool, Future[None]]] = deque()
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
            while self._error is None and self._waiting and self._waiting + size > self._limit:
                self._changed.wait()
            self.check()
            self._queue(lambda: self.sink.append(batch), size, fatal=True)

    def flush(self) -> None:
        """Returns once every batch is durable. Raises what went wrong with writing."""
        self._do(self.sink.commit)

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set behind all batches. Raises BadInput for a name that is taken."""
        self._do(lambda: self.sink.add_query_set(query_set), fatal=False)

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """Store a preview set behind all batches, which waits for it. Raises BadInput as the sink does."""
        self._do(lambda: self.sink.add_preview_set(dataset, preview_set, most_bytes), fatal=False)

    def close(self, ending: Ending) -> None:
        """Everything is durable on return, and the thread has ended. Raises what went wrong with writing."""
        try:
            self._do(lambda: self.sink.close(ending), last=True)
        except BaseException:
            self._stop()
            with suppress(OSError):  # where one act fails, letting go may fail, too, and say less
                self.sink.abandon()
            raise
        self._thread.join()

    def _do(self, job: Job, *, fatal: bool = True, last: bool = False) -> None:
        """Run a job behind all earlier ones and wait for it; after the `last` one the thread ends.

        Raises what the job raises, after which none runs any more if it is `fatal`, or if it is no refusal of ours.
        """
        self.check()
        with self._changed:
            done = self._queue(job, 0, fatal)
            if last:
                self._queue(None, 0, fatal=False)
        error = done.exception()
        if error is not None:
            self.check()
            raise error

    def _stop(self) -> None:
        """Let the queued jobs finish and end the thread."""
        with self._changed:
            self._queue(None, 0, fatal=False)
        self._thread.join()

    def _queue(self, job: Job | None, size: int, fatal: bool) -> Future[None]:
        done: Future[None] = Future()
        self._jobs.append((job, size, fatal, done))
        self._waiting += size
        self._changed.notify_all()
        return done

    def _work(self) -> None:
        while True:
            job, size, fatal, done = self._next()
            if job is None:
                return
            error = self._error
            try:
                if error is None:
                    job()
            except BaseException as raised:  # whatever it is, the training thread is who must hear of it
                error = raised
            with self._changed:
                if error is not None and (fatal or not isinstance(error, DualformError)):
                    self._error = error
                self._waiting -= size
                self._changed.notify_all()
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
            del job

    def _next(self) -> tuple[Job | None, int, bool, Future[None]]:
        """The next job; until there is one, the sink's `tick` is called as often as it asks for."""
        while True:
            seconds = self._idle()
            with self._changed:
                if not self._jobs:
                    self._changed.wait(seconds)
                if self._jobs:
                    return self._jobs.popleft()

    def _idle(self) -> float | None:
        """Call `tick` where no job waits; returns how long to wait for one, None for however long it takes."""
        if self._jobs or self._sink is None or self._error is not None:
            return None
        try:
            return self._sink.tick()
        except BaseException as raised:  # as where a job fails
            with self._changed:
                self._error = raised
                self._changed.notify_all()
            return None


def _hint_of(error: BaseException) -> str:
    if isinstance(error, OSError):
        return "The steps committed before are safe. Free disk space or repair the folder, then record again."
    return "The steps committed before are safe. The cause is not the disk: see the error above."
