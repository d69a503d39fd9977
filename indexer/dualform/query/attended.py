"""Work that whoever waits for it may end: a mask of many slots, a statement in another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as NotYet
from contextlib import suppress
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

    def settle() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)
        finally:
            seconds_taken.append(time.thread_time())  # the thread began with this work

    thread = Thread(target=settle, name="attended", daemon=True)
    thread.start()
    seconds = _LOOK
    given_up: BaseException | None = None
    while True:
        with suppress(NotYet):
            found.exception(seconds)
            break
        try:
            if given_up is None:
                check()
        except BaseException as reason:
            given_up, seconds = reason, _AGAIN
        if given_up is not None:
            stop()
    thread.join()
    bounds.add(sum(seconds_taken))
    if given_up is not None:
        raise given_up
    return found.result()
