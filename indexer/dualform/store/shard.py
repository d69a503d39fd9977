"""One shard's slots.duckdb: opened read-write only while committing.

A DuckDB file that one process holds read-write cannot be opened by another, so both sides wait a while for each other:
a commit lasts some hundredths of a second, and so does the copy that a reader takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualform.errors import BadInput, Locked
from dualform.store.locks import held_back
from dualform.store.manifest import TableMark
from dualform.store.tables import COMMITS, ColumnTypes, arrow_type, create_statement, quoted, rows_table, running_digest

_WRITTEN = {"?": "DuckDB reads what follows as options"}
_OPENED = {"\\": "DuckDB reads it as a slash"}


def duckdb_path(path: Path) -> str:
    """Absolute: a relative one may begin as an address does, `s3:` or `md:`, or as a home, `~`.

    Raises BadInput where DuckDB would open another file than this.
    """
    check_openable(path)
    return str(path.absolute())


def check_openable(path: Path) -> None:
    """Raises BadInput where DuckDB cannot open files in this folder."""
    try:
        os.fspath(path.absolute()).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"the path {os.fspath(path)!r} is not valid UTF-8.",
            hint="Rename the folder, or choose another.",
            field="path",
        ) from None
    if os.sep == "/":
        _check(path, _OPENED)


def check_writable(path: Path) -> None:
    """Raises BadInput where DuckDB cannot write files in this folder, which it may still be able to read."""
    check_openable(path)
    _check(path, _WRITTEN)


def _check(path: Path, marks: dict[str, str]) -> None:
    place = os.fspath(path.absolute()), os.fspath(path.resolve())  # DuckDB follows links
    for mark, reason in marks.items():
        if any(mark in own for own in place):
            raise BadInput(
                f"{place[1]} cannot hold a memory: its path contains {mark!r}, and {reason}.",
                hint="Rename the folder, or choose another.",
                field="path",
            )


FILE = "slots.duckdb"
LINK_ENTRIES = 1 << 20
"""A list column has a running digest about every so many entries, so that few are read for a few of them."""
_WAIT_SECONDS = 60.0
_QUIET = "SET enable_progress_bar = false"
"""Where nobody wrote a file of the program, as in a notebook, DuckDB draws one into the training's output."""
_LOCK_WORDS = (
    "Could not set lock",
    "Conflicting lock",
    "different configuration",
    "being used by another process",
    "Unique file handle conflict",
)
_Found = TypeVar("_Found")


@contextmanager
def opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that reads slots.duckdb, waited for while another process holds the file, and closed at the end.

    Raises Locked where it is held for too long.
    """
    with _attached(path, "TYPE duckdb, READ_ONLY") as connection, threaded(connection):
        yield connection


_IDLE: dict[int, list[duckdb.DuckDBPyConnection]] = {}
"""By process, at most one that waits. What a fork leaves of its parent's may be locked."""


@contextmanager
def scratch() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB of no file and one thread, for one user at a time. Starting one takes 20 ms, so that one is kept for
    whoever comes next; none in which anything failed.
    """
    idle = _IDLE.setdefault(os.getpid(), [])
    try:
        connection = idle.pop()
    except IndexError:
        # The training wants the processor: no threads for a few rows, and straight into the file, not to a log.
        with held_back():
            connection = duckdb.connect(config={"threads": 1, "checkpoint_threshold": "1 byte"})
        connection.execute(_QUIET)
    try:
        yield connection
    except BaseException:
        connection.close()  # a transaction that nobody ends would hold the file
        raise
    if idle:
        connection.close()
    else:
        idle.append(connection)


@contextmanager
def threaded(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """As many threads as there are processors, for tables that have many rows."""
    connection.execute("RESET threads")
    yield
    connection.execute("SET threads = 1")


@contextmanager
def _attached(path: Path, options: str = "TYPE duckdb") -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB whose statements name the file's tables. Raises Locked if another process holds the file too long."""
    place = duckdb_path(path).replace("'", "''")
    with ExitStack() as held, scratch() as connection:
        _waited(path, lambda: connection.execute(f"ATTACH '{place}' AS shard ({options})"), held)
        connection.execute("USE shard")
        yield connection
        connection.execute("USE memory")
        connection.execute("DETACH shard")
        # What rows took is freed, and kept by DuckDB's allocator: it is let go where a limit is set.
        connection.execute("RESET memory_limit")


def _waited(path: Path, open_file: Callable[[], _Found], held: ExitStack) -> _Found:
    """What opening the file returns once no other process holds it; while it is `held`, forks are held back.

    Raises Locked where another process holds it for too long.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            with ExitStack() as opening:
                opening.enter_context(held_back())
                found = open_file()
                held.enter_context(opening.pop_all())
                return found
        except duckdb.Error as error:
            if not any(word in str(error) for word in _LOCK_WORDS):
                raise
            if time.monotonic() > deadline:
                raise Locked(
                    f"{path} has been held by another process for {_WAIT_SECONDS:.0f} seconds.",
                    hint="Close the program that has it open, for example a DuckDB shell.",
                ) from None
            time.sleep(0.02)


def create(path: Path, tables: Mapping[str, ColumnTypes], views: Sequence[str]) -> dict[str, TableMark]:
    """Make the file with empty tables, and views by their statements; returns the tables' marks."""
    with _writing(path) as connection:
        connection.execute(create_statement("commits", COMMITS))
        return _add(connection, 0, tables, views, {})


def evolve(
    path: Path,
    commit: int,
    tables: Mapping[str, ColumnTypes],
    views: Sequence[str],
    marks: Mapping[str, TableMark],
) -> dict[str, TableMark]:
    """Make the tables and columns that are not there yet, and the views anew; returns the marks after it.

    A column that comes late is NULL in the rows before it. Nothing changes for a reader who does not know of it.
    """
    with _writing(path) as connection:
        return _add(connection, commit, tables, views, marks)


def append(
    path: Path, commit: int, added: Mapping[str, pa.Table], marks: Mapping[str, TableMark]
) -> dict[str, TableMark]:
    """Add one commit's rows in one transaction, durably; returns the marks after it.

    Rows beyond `marks` are what a commit that was cut off left behind; there are none in a file that its one writer
    has held since it was created. Raises Locked where another process holds the file for too long.
    """
    changed = [name for name in marks if name in added and added[name].num_rows]
    after, log = dict(marks), list[tuple[int, str, str, int, str]]()
    for name in changed:
        links = _links(marks[name], added[name])
        log += [(commit, name, *link) for link in links]
        last = {column: digest for column, _, digest in links}
        after[name] = TableMark(marks[name].rows + added[name].num_rows, last)
    with _writing(path) as connection:
        for name in changed:
            _insert(connection, name, added[name])
        _insert(connection, "commits", rows_table(log, COMMITS))
    return after


@contextmanager
def _writing(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A transaction that writes to the file, which is held only meanwhile."""
    with _attached(path) as connection:
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
        # Leaves no write-ahead log behind: one cut in half would open without an error and with fewer rows.
        connection.execute("CHECKPOINT")


def _add(
    connection: duckdb.DuckDBPyConnection,
    commit: int,
    tables: Mapping[str, ColumnTypes],
    views: Sequence[str],
    marks: Mapping[str, TableMark],
) -> dict[str, TableMark]:
    """Make what is not there yet, and the views by their statements; returns the marks after it."""
    after = {}
    for table, types in tables.items():
        if table not in marks:
            connection.execute(create_statement(table, types))
            after[table] = TableMark(0, dict.fromkeys(types, ""))
            continue
        mark, digests = marks[table], dict(marks[table].digests)
        for name in [name for name in types if name not in digests]:
            connection.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {types[name]}")
            digests[name] = _digest_of_nulls(mark.rows, types[name])
            if mark.rows:
                _insert(connection, "commits", rows_table([(commit, table, name, mark.rows, digests[name])], COMMITS))
        after[table] = TableMark(mark.rows, digests)
    for statement in views:
        connection.execute(statement)
    return after


def _digest_of_nulls(rows: int, kind: str) -> str:
    return running_digest("", pa.nulls(rows, type=arrow_type(kind))) if rows else ""


def _links(before: TableMark, added: pa.Table) -> list[tuple[str, int, str]]:
    """(column, rows, digest) of each link of the chain of digests that a commit adds, in order."""
    found = []
    for name in added.column_names:
        digest, start = before.digests[name], 0
        for stop in _stops(added[name]):
            digest = running_digest(digest, added[name].slice(start, stop - start))
            found.append((name, before.rows + stop, digest))
            start = stop
    return found


def _stops(column: pa.ChunkedArray) -> list[int]:
    """After how many rows a link ends."""
    if not pa.types.is_list(column.type):
        return [len(column)]
    entries = np.cumsum(np.asarray(pc.list_value_length(column).fill_null(0)), dtype=np.int64)
    link = np.maximum(entries - 1, 0) // LINK_ENTRIES
    return [*(np.flatnonzero(np.diff(link)) + 1).tolist(), len(column)]


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    names = ", ".join(quoted(name) for name in rows.column_names)
    connection.register("added", rows)
    connection.execute(f"INSERT INTO {quoted(table)} ({names}) SELECT {names} FROM added")
    connection.unregister("added")
