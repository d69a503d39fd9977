"""One thread that does the writing, behind a queue bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from dualform.errors import DualformError, RecordingError

Job: TypeAlias = Callable[[], None]


class WriterThread:
    """Runs jobs in order. After one fails, none runs any more, and everyone who asks is told why."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """Bytes that may wait before `put` waits too."""
        self._waiting = 0
        self._jobs: deque[tuple[Job | None, int, bool, Future[None]]] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self.when_idle: Callable[[], float] | None = None
        """Called while no job waits; returns the seconds after which it wants to be called again."""
        # A daemon: a training that dies without leaving the recorder must not hang its interpreter. What was
        # committed is whole wherever the thread stops.
        self._thread = threading.Thread(target=self._work, name="dualform-writer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what an earlier job failed with: a dualform error as it is, any other as RecordingError."""
        error = self._error
        if isinstance(error, DualformError):
            raise error
        if error is not None:
            raise RecordingError(
                f"writing the memory failed: {type(error).__name__}: {error}.",
                hint="What was committed before is safe; free the disk or mend the folder and record anew.",
            ) from error

    def put(self, job: Job, size: int) -> None:
        """Queue a job that holds `size` bytes; waits while the queue is full, but for a job larger than the queue."""
        with self._changed:
            while self._error is None and self._waiting and self._waiting + size > self._limit:
                self._changed.wait()
            self.check()
            self._append(job, size, fatal=True)

    def do(self, job: Job, *, fatal: bool = True) -> None:
        """Run a job behind all earlier ones and wait for it. Raises what it raises, which is the end if `fatal`."""
        self.check()
        with self._changed:
            done = self._append(job, 0, fatal)
        error = done.exception()
        if error is not None:
            self.check()
            raise error

    def stop(self) -> None:
        """Let the queued jobs finish and end the thread."""
        with self._changed:
            self._append(None, 0, fatal=False)
        self._thread.join()

    def _append(self, job: Job | None, size: int, fatal: bool) -> Future[None]:
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
                if fatal and error is not None:
                    self._error = error
                self._waiting -= size
                self._changed.notify_all()
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
            del job

    def _next(self) -> tuple[Job | None, int, bool, Future[None]]:
        """The next job; until there is one, `when_idle` runs as often as it asks to."""
        while True:
            seconds = self._idle()
            with self._changed:
                if not self._jobs:
                    self._changed.wait(seconds)
                if self._jobs:
                    return self._jobs.popleft()

    def _idle(self) -> float | None:
        """Run `when_idle` where no job waits; returns how long to wait for one, None for however long it takes."""
        if self._jobs or self.when_idle is None or self._error is not None:
            return None
        try:
            return self.when_idle()
        except BaseException as raised:  # as where a job fails
            with self._changed:
                self._error = raised
                self._changed.notify_all()
            return None
