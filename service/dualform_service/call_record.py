"""What is noted of a call while it is answered, for whoever wants to know when it has ended: metrics, log, traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

NAME = 200
"""Most characters of a layer's name that are noted: a caller may send megabytes."""


@dataclass(eq=False)
class CallRecord:
    """Noted on the loop and by the thread that works on the call; it stays as it is once the call has ended."""

    method: str
    request_id: str
    peer: str
    """As gRPC writes it."""
    trace_parent: str = ""
    """What the caller says of the trace that it is in, as W3C has it; empty where it says nothing."""
    caller: str = ""
    """The name of the token that it brought; empty where none is asked for, or it was not let in."""
    memory: str = ""
    """The name of the one that is asked; empty where it has none, or the call was not let in."""
    layer: str = ""
    """That the question names, whether there is such a layer or not, up to NAME characters of it; empty before it is
    read, and of questions about no single layer."""
    outcome: str = "ok"
    """Or the code of the error."""
    bytes_in: int = 0
    bytes_out: int = 0
    began: float = field(default_factory=time.time)
    """Seconds since 1970."""
    seconds: float = 0.0
    """From its headers to the end of its answer."""
    working: float = 0.0
    """Of which so many a thread worked on it: alone, or on a scan that it shared with others, all of whom count it."""
    work_began: float | None = None
    """Seconds after its beginning; None of a call that nothing worked on."""
    _started: float = field(default_factory=time.monotonic)
    _working_since: float | None = None
    _ended: bool = False

    @property
    def waiting(self) -> float:
        """Seconds in which nothing worked on it: for its message, for a thread, for its answer to be read."""
        return max(0.0, self.seconds - self.working)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on the call is done inside."""
        now = self._working_since = time.monotonic()
        if self.work_began is None:
            self.work_began = now - self._started
        try:
            yield
        finally:
            if not self._ended:
                self._work_ends(time.monotonic())

    def asks(self, question: Any) -> None:
        """The question was read."""
        self.layer = layer_of(question)

    def end(self, outcome: str) -> None:
        """What still works on the call counts up to here."""
        now = time.monotonic()
        self._work_ends(now)
        self.outcome, self.seconds, self._ended = outcome, now - self._started, True

    def _work_ends(self, now: float) -> None:
        since, self._working_since = self._working_since, None
        if since is not None:
            self.working += now - since


def layer_of(question: Any) -> str:
    """Up to NAME characters of the layer's name; empty of a question about no single layer."""
    return (getattr(question, "layer", None) or "")[:NAME]


Observer: TypeAlias = Callable[[CallRecord], None]
"""Is told of each call that has ended, on the loop; it neither waits nor raises."""

_current: ContextVar[CallRecord] = ContextVar("dualform_call")


def begin(record: CallRecord) -> CallRecord:
    """From here on it is the current one of the task that handles the call."""
    _current.set(record)
    return record


def current() -> CallRecord:
    """Of the call that the running task handles; one that nobody reads where it handles none."""
    return _current.get(None) or CallRecord("", "", "")
