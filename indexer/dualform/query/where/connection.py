"""Connections to a DuckDB in memory: one for all small masks of a process, since DuckDB takes 15 ms to start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as NotYet
from functools import lru_cache
from threading import Thread
from typing import TypeVar

import duckdb

from dualform.query import helpers_time
from dualform.query.view import Check, never
from dualform.store.forks import held_back

Found = TypeVar("Found")

_ROW_GROUP = 122_880
"""Rows that DuckDB gives to one thread: fewer would not be shared among several."""


_LOOK = 0.05
"""Seconds between looks whether a question still wants its mask."""
_AGAIN = 0.01
"""Seconds between interrupts: one that comes between a statement's parts is not heard."""


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Found], check: Check = never) -> Found:
    """What `work` returns, which asks this connection alone. Raises what `check` raises meanwhile, once it has ended.

    It runs on a thread of its own, so that the asker's may look; what that took of the processor is noted for the
    asker's. An interrupt is the connection's: it reaches none of others.
    """
    if check is never:
        return work()
    found, seconds_taken = Future[Found](), list[float]()
    Thread(target=_settle, args=(found, work, seconds_taken), name="mask", daemon=True).start()
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
            connection.interrupt()
    helpers_time.add(sum(seconds_taken))
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


def connect(rows: int) -> duckdb.DuckDBPyConnection:
    """A connection for a question over so many rows, which sees no tables of others; the caller closes it."""
    if rows > _ROW_GROUP:
        with held_back():
            return duckdb.connect()
    try:
        found = _shared(os.getpid()).cursor()
        found.execute("SELECT 1").fetchall()
    except duckdb.Error:  # an internal error of DuckDB's ends all that runs in it
        _shared.cache_clear()
        return _shared(os.getpid()).cursor()
    return found


@lru_cache
def _shared(process: int) -> duckdb.DuckDBPyConnection:
    """A process's own: what a fork leaves of its parent's may be locked. It has no threads to be missed at the end."""
    with held_back():
        return duckdb.connect(config={"threads": 1})
