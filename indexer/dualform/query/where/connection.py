"""Connections to a DuckDB in memory: one for all small masks of a process, since DuckDB takes 15 ms to start."""

from __future__ import annotations

import os
from functools import lru_cache

import duckdb

from dualform.store.forks import held_back

_ROW_GROUP = 122_880
"""Rows that DuckDB gives to one thread: fewer would not be shared among several."""


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
