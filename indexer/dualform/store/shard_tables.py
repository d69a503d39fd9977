"""The tables of one shard as of a commit, and what its journal holds beyond: read column by column, when first used.

A column's running digest is verified when it is read, commit by commit (tables.py), against the log of commits, whose
last entries stand in memory.json. DuckDB is held for as long as reading takes, so that a training can go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeAlias

import duckdb
import pyarrow as pa

from dualform.errors import Damaged, DualformError
from dualform.store.manifest import TableMark
from dualform.store.shard import opened
from dualform.store.tables import ColumnTypes, arrow_type, quoted, running_digest

_PAGE = 4096
"""Bytes; the header and the blocks of a DuckDB file are multiples of it."""
Commits: TypeAlias = dict[tuple[str, str], list[tuple[int, str]]]
"""(rows, digest) after each commit that added to a column, by table and column."""


class Tables(Protocol):
    """Where the columns of a snapshot's tables come from."""

    @property
    def types(self) -> Mapping[str, ColumnTypes]:
        """Columns and their DuckDB types, by table."""
        ...

    def rows(self, table: str) -> int: ...

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Raises Damaged, naming the file, where one is not what was committed."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A moment in which many columns are read, through one connection."""
        ...


def whole(tables: Tables, table: str, names: Iterable[str] | None = None) -> pa.Table:
    """A table, or some of its columns."""
    chosen = list(tables.types[table] if names is None else names)
    return pa.table(tables.columns(table, chosen), names=chosen)


class HeldTables:
    """Tables that memory holds."""

    def __init__(self, tables: Mapping[str, pa.Table], types: Mapping[str, ColumnTypes]) -> None:
        self._tables, self.types = tables, types

    def rows(self, table: str) -> int:
        return int(self._tables[table].num_rows) if table in self._tables else 0

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        if table in self._tables:
            return [self._tables[table][name] for name in names]
        return [pa.chunked_array([], type=arrow_type(self.types[table][name])) for name in names]

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()


class ShardTables:
    """Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        types: Mapping[str, ColumnTypes],
        marks: Mapping[str, TableMark],
        first: Mapping[str, Sequence[str]],
        journal: Mapping[str, pa.Table],
    ) -> None:
        """`path`: slots.duckdb. `first`: columns that are read at once. `journal`: rows since the commit of `marks`.

        Raises Damaged, naming the file, where the log of commits and the marks part, or a column is not what was
        committed.
        """
        _check_length(path)
        self.types = types
        self._path, self._marks, self._journal = path, marks, journal
        self._held: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._loading = RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        with _read_only(path) as connection, _damaged_if_wrong(path):
            log = connection.execute('SELECT "table", "column", "rows", digest FROM commits ORDER BY rowid').fetchall()
            self._commits = self._checked_commits(log)
            for table, columns in first.items():
                self._load(connection, table, columns)

    def rows(self, table: str) -> int:
        return self._marks[table].rows + (self._journal[table].num_rows if table in self._journal else 0)

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        with self._loading:
            missing = [name for name in names if (table, name) not in self._held]
            if missing and self._connection is not None:
                with _damaged_if_wrong(self._path):
                    self._load(self._connection, table, missing)
            elif missing:
                with self.reading():
                    return self.columns(table, names)
            return [self._held[table, name] for name in names]

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._loading:
            if self._connection is not None:
                yield
                return
            with _read_only(self._path) as connection:
                self._connection = connection
                try:
                    yield
                finally:
                    self._connection = None

    def _checked_commits(self, log: Sequence[tuple[str, str, int, str]]) -> Commits:
        """The log of commits up to the marks."""
        found: Commits = {}
        for table, column, rows, digest in log:
            if table in self._marks and rows <= self._marks[table].rows:
                found.setdefault((table, column), []).append((rows, digest))
        for table, mark in self._marks.items():
            for column, digest in mark.digests.items():
                rows, last = found.get((table, column), [(0, "")])[-1]
                if (rows, last) != (mark.rows, digest):
                    raise Damaged(f"{self._path} was altered: its table {table} is not what was committed.")
        return found

    def _load(self, connection: duckdb.DuckDBPyConnection, table: str, names: Sequence[str]) -> None:
        mark = self._marks[table]
        chosen = ", ".join(quoted(name) for name in names)
        # DuckDB keeps insertion order where nothing asks for another; the running digest would notice if it did not.
        read = connection.sql(f"SELECT {chosen} FROM {quoted(table)} LIMIT {mark.rows}").to_arrow_table()
        for name in names:
            column = read[name].cast(arrow_type(self.types[table][name]))
            self._verify(table, name, column)
            if table in self._journal:
                column = pa.chunked_array([*column.chunks, *self._journal[table][name].chunks], type=column.type)
            self._held[table, name] = column

    def _verify(self, table: str, name: str, column: pa.ChunkedArray) -> None:
        mark = self._marks[table]
        if len(column) != mark.rows:
            raise Damaged(f"{self._path} has {len(column)} rows in {table} where {mark.rows} were committed.")
        digest, start = "", 0
        for stop, expected in self._commits.get((table, name), []):
            digest = running_digest(digest, column.slice(start, stop - start))
            start = stop
            if digest != expected:
                raise Damaged(f"{self._path} was altered: column {name!r} of {table} is not what was committed.")


def _check_length(path: Path) -> None:
    """DuckDB may not miss a last block of which bytes were cut off: it reads blocks when it needs them."""
    if not path.is_file():
        raise Damaged(f"{path} is missing.")
    if path.stat().st_size % _PAGE:
        raise Damaged(f"{path} was altered or cut short: it has {path.stat().st_size} bytes.")


@contextmanager
def _read_only(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for a moment."""
    with ExitStack() as stack:
        with _damaged_if_wrong(path):
            connection = stack.enter_context(opened(path, read_only=True))
        yield connection


@contextmanager
def _damaged_if_wrong(path: Path) -> Iterator[None]:
    """DuckDB answers a damaged file with errors of many kinds, and Arrow with others: all become Damaged."""
    try:
        yield
    except DualformError:
        raise
    except Exception as error:
        raise Damaged(f"{path} was altered or cut short: {(str(error).splitlines() or [''])[0]}") from None
