"""One shard's slots.duckdb: held read-write only while committing, read into memory and let go.

A DuckDB file that one process holds read-write cannot be opened by another, so both sides wait a while for each other:
a commit lasts some hundredths of a second, and so does the copy that a reader takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from dualform.errors import Damaged, Locked
from dualform.store.manifest import TableMark
from dualform.store.tables import COMMITS, ColumnTypes, as_typed, create_statement, quoted, rows_table, running_digest

FILE = "slots.duckdb"
_WAIT_SECONDS = 60.0
_LOCK_WORDS = ("Could not set lock", "Conflicting lock", "different configuration", "being used by another process")


@contextmanager
def _opened(path: Path, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection = duckdb.connect(path, read_only=read_only)
            break
        except duckdb.Error as error:
            if not any(word in str(error) for word in _LOCK_WORDS):
                raise
            if time.monotonic() > deadline:
                raise Locked(
                    f"{path} has been held by another process for {_WAIT_SECONDS:.0f} seconds.",
                    hint="Close the program that has it open, for example a DuckDB shell.",
                ) from None
            time.sleep(0.02)
    try:
        yield connection
    finally:
        connection.close()


def create(path: Path, tables: Mapping[str, ColumnTypes]) -> dict[str, TableMark]:
    """Make the file with empty tables; returns their marks."""
    with _opened(path, read_only=False) as connection:
        for name, types in {**tables, "commits": COMMITS}.items():
            connection.execute(create_statement(name, types))
        connection.execute("CHECKPOINT")
    return {name: TableMark(0, "") for name in tables}


def add_columns(path: Path, table: str, types: ColumnTypes) -> None:
    with _opened(path, read_only=False) as connection:
        for name, kind in types.items():
            connection.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {kind}")
        connection.execute("CHECKPOINT")


def append(
    path: Path, commit: int, added: Mapping[str, pa.Table], marks: Mapping[str, TableMark]
) -> dict[str, TableMark]:
    """Add one commit's rows in one transaction, durably; returns the marks after it.

    Rows beyond `marks` are what a commit that was cut off left behind; there are none in a file that its one writer
    has held since it was created.
    """
    after = {
        name: TableMark(mark.rows + added[name].num_rows, running_digest(mark.digest, added[name]))
        if name in added and added[name].num_rows
        else mark
        for name, mark in marks.items()
    }
    changed = [name for name in marks if after[name] != marks[name]]
    log = rows_table([(commit, name, after[name].rows, after[name].digest) for name in changed], COMMITS)
    with _opened(path, read_only=False) as connection:
        connection.execute("BEGIN")
        for name in changed:
            _insert(connection, name, added[name])
        _insert(connection, "commits", log)
        connection.execute("COMMIT")
        # Leaves no write-ahead log behind: one cut in half would open without an error and with fewer rows.
        connection.execute("CHECKPOINT")
    return after


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("added", rows)
    connection.execute(f"INSERT INTO {quoted(table)} SELECT * FROM added")
    connection.unregister("added")


def read(path: Path, tables: Mapping[str, ColumnTypes], marks: Mapping[str, TableMark]) -> dict[str, pa.Table]:
    """Every table as of its mark, verified row by row against the running digests.

    Raises Damaged, naming the file, where a row that was committed is missing or altered.
    """
    if not path.is_file():
        raise Damaged(f"{path} is missing.")
    try:
        with _opened(path, read_only=True) as connection:
            loaded = {
                name: as_typed(_first_rows(connection, name, types, marks[name].rows), types)
                for name, types in tables.items()
            }
            log = connection.execute('SELECT "table", "rows" FROM commits ORDER BY "commit", rowid').fetchall()
    except Locked:
        raise
    except Exception as error:
        # DuckDB answers a damaged file with errors of many kinds, and Arrow with others.
        raise Damaged(f"{path} was altered or cut short: {str(error).splitlines()[0]}") from None
    bounds: dict[str, list[int]] = {name: [] for name in tables}
    for name, rows in log:
        if name in bounds:
            bounds[name].append(rows)
    for name, rows in loaded.items():
        _verify(path, name, rows, bounds[name], marks[name])
    return loaded


def _first_rows(connection: duckdb.DuckDBPyConnection, table: str, types: ColumnTypes, rows: int) -> pa.Table:
    names = ", ".join(quoted(name) for name in types)
    # DuckDB keeps insertion order where nothing asks for another; the running digest would notice if it did not.
    return connection.sql(f"SELECT {names} FROM {quoted(table)} LIMIT {rows}").to_arrow_table()


def _verify(path: Path, table: str, rows: pa.Table, bounds: list[int], mark: TableMark) -> None:
    if rows.num_rows != mark.rows:
        raise Damaged(f"{path} has {rows.num_rows} rows in {table} where {mark.rows} were committed.")
    digest, start = "", 0
    for stop in bounds:
        if start < stop <= mark.rows:
            digest = running_digest(digest, rows.slice(start, stop - start))
            start = stop
    if digest != mark.digest:
        raise Damaged(f"{path} was altered: its table {table} is not what was committed.")
