"""Work that whoever waits for it may end: a mask of many slots, a statement in another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as NotYet
from threading import Thread
from typing import TypeVar

from dualform.query import bounds
from dualform.query.view import Check, never

Found = TypeVar("Found")
_LOOK = 0.05
"""Seconds between looks whether a question still wants the result."""
_AGAIN = 0.01
"""Seconds between two stops: DuckDB does not hear an interrupt that comes between a statement's parts."""


def attended(work: Callable[[], Found], stop: Callable[[], object], check: Check = never) -> Found:
    """What `work` returns, or raises. Once `check` raises, `stop` is called until the work has ended, and then that is
    raised.

    The work runs on a thread of its own, so that the asker's may look; what that took of the processor is noted for the
    asker's.
    """
    if check is never:
        return work()
    found, seconds_taken = Future[Found](), list[float]()
    Thread(target=_settle, args=(found, work, seconds_taken), name="attended", daemon=True).start()
    seconds = _LOOK
    given_up: BaseException | None = None
    while True:
        try:
            error = found.exception(seconds)
            break
        except NotYet:
            pass
        try:
            if given_up is None:
                check()
        except BaseException as reason:
            given_up, seconds = reason, _AGAIN
        if given_up is not None:
            stop()
    bounds.add(sum(seconds_taken))
    if given_up is not None:
        raise given_up
    if error is not None:
        raise error
    return found.result()


def _settle(found: Future[Found], work: Callable[[], Found], seconds_taken: list[float]) -> None:
    try:
        made = work()
    except BaseException as error:
        seconds_taken.append(time.thread_time())  # the thread began with this work
        found.set_exception(error)
    else:
        seconds_taken.append(time.thread_time())
        found.set_result(made)
