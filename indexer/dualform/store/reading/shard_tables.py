"""The tables of one shard as of a commit, with lists and samples.

What is said of datapoints, once each: a datapoint is a row of the batch of a step. Shapes: D datapoints.

The tables of one shard as of a commit, and what its journal holds beyond: those of few rows are read as the shard
is opened, others column by column, when first used.

A column's running digest is verified when it is read, commit by commit (tables.py), against the log of commits, whose
last entries stand in memory.json. DuckDB is held for as long as reading takes, so that a training can go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.errors import Damaged, DualformError
from dualform.store.files.durable_files import damaged, unreadable
from dualform.store.manifest import TableMark
from dualform.store.rows import Integers
from dualform.store.shard import opened
from dualform.store.tables import ROWS_AT_ONCE, ColumnTypes, Lists, arrow_type, joined, quoted, running_digest

_PAGE = 4096
"""Bytes; the header and the blocks of a DuckDB file are multiples of it."""
FEW_ROWS = 1000
"""A table of so few rows is read as its file is opened: DuckDB opens a file in the time of reading a dozen of them."""
_MOST_LINKS = 16
"""Parts of columns that are held for the next look-up."""
Commits: TypeAlias = dict[tuple[str, str], list[tuple[int, str]]]
"""(rows, digest) of each link of a column's chain of digests, by table and column: a commit adds one, or several to
a list column of many entries."""


class Tables(Protocol):
    """Where the columns of a snapshot's tables come from."""

    types: Mapping[str, ColumnTypes]
    """Columns and their DuckDB types, by table."""

    def rows(self, table: str) -> int: ...

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Raises Damaged, naming the file, where one is not what was committed."""
        ...

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        """Entries of a column at some rows, ascending, of which as little as possible is read. Raises as `columns`."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A moment in which many columns are read, through one connection."""
        ...

    def entry_order(self, layer: str) -> Integers | None:
        """int64[H]: the place of each entry of a layer among those that are stored; None where they are in order."""
        return None

    def key_rows(self, layer: str, rows: Sequence[int]) -> Integers:
        """int64[H]: the stored row of each stored entry's key, of a layer whose inputs repeat.

        `rows`: how many each shard stores.
        """
        return listed_key_rows(self, layer)


def whole(tables: Tables, table: str, names: Iterable[str] | None = None) -> pa.Table:
    """A table, or some of its columns."""
    chosen = list(tables.types[table] if names is None else names)
    return pa.table(tables.columns(table, chosen), names=chosen)


def listed_key_rows(tables: Tables, layer: str) -> Integers:
    """The table `key_rows` of one layer, as one list."""
    table = whole(tables, "key_rows", ("layer", "key_rows"))
    lists = table.filter(pa.compute.equal(table["layer"], layer))["key_rows"]
    parts = [np.asarray(chunk.flatten(), dtype=np.int64) for chunk in lists.chunks]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def taken(column: pa.ChunkedArray, rows: Integers) -> pa.Array:
    """Entries of a column at some rows, as one array."""
    return joined(column.take(pa.array(rows)).chunks, column.type)


class HeldTables(Tables):
    """Tables that memory holds."""

    def __init__(self, tables: Mapping[str, pa.Table], types: Mapping[str, ColumnTypes]) -> None:
        self._tables, self.types = tables, types

    def rows(self, table: str) -> int:
        return int(self._tables[table].num_rows) if table in self._tables else 0

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        if table in self._tables:
            return [self._tables[table][name] for name in names]
        return [pa.chunked_array([], type=arrow_type(self.types[table][name])) for name in names]

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        return taken(self.columns(table, [name])[0], rows)

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()


class ShardTables(Tables):
    """Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        types: Mapping[str, ColumnTypes],
        marks: Mapping[str, TableMark],
        first: Mapping[str, Sequence[str]],
        journal: Mapping[str, pa.Table],
        *,
        ended: bool = True,
    ) -> None:
        """`path`: slots.duckdb. `first`: columns that are read at once, however many rows they have. `journal`: rows
        since the commit of `marks`. `ended`: whether the recording came to its end.

        Raises Damaged, naming the file, where the log of commits and the marks part, or a column is not what was
        committed.
        """
        _check_length(path, ended)
        self.types = types
        self._path, self._marks, self._journal = path, marks, journal
        self._held: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._parts: OrderedDict[tuple[str, str, int], pa.Array] = OrderedDict()
        self._loading = RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._reading: ExitStack | None = None
        """What closes the file again."""
        with read_only(path) as connection, _damaged_if_wrong(path):
            log = connection.execute('SELECT "table", "column", "rows", digest FROM commits ORDER BY rowid').fetchall()
            self._commits = self._checked_commits(log)
            for table in dict.fromkeys([*first, *marks]):
                names = dict.fromkeys([*first.get(table, ()), *self._short(table)])
                self._load(connection, table, list(names))

    def rows(self, table: str) -> int:
        committed = self._marks[table].rows if table in self._marks else 0
        return committed + (self._journal[table].num_rows if table in self._journal else 0)

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        with self._loading:
            missing = [name for name in names if (table, name) not in self._held]
            if missing:
                with self.reading():
                    connection = self._opened()
                    with _damaged_if_wrong(self._path):
                        self._load(connection, table, missing)
            return [self._held[table, name] for name in names]

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        with self._loading:
            if (table, name) in self._held:
                return taken(self._held[table, name], rows)
            committed = rows[rows < self._marks[table].rows]
            links = self._commits.get((table, name), [])
            stops = np.array([stop for stop, _ in links], dtype=np.int64)
            cuts = np.searchsorted(committed, [0, *stops])
            found = [pa.array([], type=arrow_type(self.types[table][name]))]
            with self.reading():
                for link, (low, high) in enumerate(pairwise(cuts.tolist())):
                    if low < high:
                        start = int(stops[link - 1]) if link else 0
                        found.append(self._part(table, name, link).take(pa.array(committed[low:high] - start)))
            if len(committed) < len(rows):
                found.append(taken(self._journal[table][name], rows[len(committed) :] - self._marks[table].rows))
            return joined(found, found[0].type)

    def _part(self, table: str, name: str, link: int) -> pa.Array:
        """The rows of one link of a column's chain, verified against its digest and the one before."""
        key = (table, name, link)
        if key not in self._parts:
            connection, links = self._opened(), [(0, ""), *self._commits[table, name]]
            (start, before), (stop, expected) = links[link], links[link + 1]
            with _damaged_if_wrong(self._path):
                # Rows are never deleted, so that they are numbered without a gap; the digest would notice it.
                within = f"WHERE rowid BETWEEN {start} AND {stop - 1}"
                if any(own.lower() == "rowid" for own in self.types[table]):  # the training's own, which hides it
                    within = f"LIMIT {stop - start} OFFSET {start}"
                read = connection.sql(f"SELECT {quoted(name)} FROM {quoted(table)} {within}")
                column = read.to_arrow_table(ROWS_AT_ONCE)[name].cast(arrow_type(self.types[table][name]))
                if running_digest(before, column) != expected:
                    raise self._altered(table, name)
            self._parts[key] = joined(column.chunks, column.type)
            if len(self._parts) > _MOST_LINKS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return self._parts[key]

    def _altered(self, table: str, name: str) -> Damaged:
        return damaged(self._path, f"was altered: column {name!r} of table {table!r} does not match its checksum")

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._loading:
            if self._reading is not None:
                yield
                return
            with _damaged_if_wrong(self._path):  # what is held is no answer once samples were deleted
                self._path.stat()
            with ExitStack() as stack:
                self._reading = stack
                try:
                    yield
                finally:
                    self._reading = self._connection = None

    def _opened(self) -> duckdb.DuckDBPyConnection:
        """The file, opened by the first who needs it, until what is being read is read."""
        assert self._reading is not None
        if self._connection is None:
            self._connection = self._reading.enter_context(read_only(self._path))
        return self._connection

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
                    raise damaged(self._path, f"was altered: table {table!r} does not match its checksum")
        return found

    def _short(self, table: str) -> list[str]:
        """The columns of a table of few rows: all but lists of several links, which may have many entries in a row."""
        mark, types = self._marks.get(table), self.types.get(table, {})
        if mark is None or mark.rows > FEW_ROWS:
            return []
        links = {name: len(self._commits.get((table, name), ())) for name in mark.digests if name in types}
        return [name for name, count in links.items() if count <= 1 or not pa.types.is_list(arrow_type(types[name]))]

    def _load(self, connection: duckdb.DuckDBPyConnection, table: str, names: Sequence[str]) -> None:
        if table not in self._marks:  # it came to the format later than this memory
            self._held |= {(table, name): pa.chunked_array([], arrow_type(self.types[table][name])) for name in names}
            return
        mark, read = self._marks[table], None
        if names and mark.rows:
            chosen = ", ".join(quoted(name) for name in names)
            # DuckDB keeps insertion order where nothing asks for another; the digest would notice if it did not.
            read = connection.sql(f"SELECT {chosen} FROM {quoted(table)} LIMIT {mark.rows}").to_arrow_table(
                ROWS_AT_ONCE
            )
        for name in names:
            kind = arrow_type(self.types[table][name])
            column = pa.chunked_array([], kind) if read is None else read[name].cast(kind)
            self._verify(table, name, column)
            if table in self._journal:
                column = pa.chunked_array([*column.chunks, *self._journal[table][name].chunks], type=column.type)
            self._held[table, name] = column

    def _verify(self, table: str, name: str, column: pa.ChunkedArray) -> None:
        mark = self._marks[table]
        if len(column) != mark.rows:
            raise damaged(self._path, f"has {len(column)} rows in table {table!r} instead of {mark.rows}")
        digest, start = "", 0
        for stop, expected in self._commits.get((table, name), []):
            digest = running_digest(digest, column.slice(start, stop - start))
            start = stop
            if digest != expected:
                raise self._altered(table, name)


def _check_length(path: Path, ended: bool) -> None:
    """DuckDB may not miss a last block of which bytes were cut off: it reads blocks when it needs them.

    A recording that did not end may have left a part of one behind what is committed, as where the disk was full.
    """
    if not path.is_file():
        raise damaged(path, "is missing")
    if ended and path.stat().st_size % _PAGE:
        raise damaged(path, f"was altered or cut short: it has {path.stat().st_size} bytes, not a multiple of {_PAGE}")


@contextmanager
def read_only(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for a moment, as the caller needs it. Raises Damaged where the file is no database of DuckDB."""
    with ExitStack() as stack:
        with _damaged_if_wrong(path):
            connection = stack.enter_context(opened(path))
        yield connection


@contextmanager
def _damaged_if_wrong(path: Path) -> Iterator[None]:
    """DuckDB answers a damaged file with errors of many kinds, and Arrow with others: all become Damaged."""
    try:
        yield
    except DualformError:
        raise
    except Exception as error:
        raise unreadable(path, error, "was altered or cut short") from None


class ListColumns:
    """Safe to use from several threads: what is made twice at once is the same."""

    def __init__(self, tables: Tables, table: str) -> None:
        self._tables, self._table = tables, table
        self._read = dict[str, Lists]()

    def whole(self, name: str) -> Lists:
        """The lists of all extents."""
        if name not in self._read:
            self._read[name] = Lists(self._tables.columns(self._table, [name])[0])
        return self._read[name]

    def some(self, name: str, extents: Integers) -> Lists | None:
        """Those of some extents alone, in their order; None where all are at hand."""
        if name in self._read:
            return None
        return Lists(pa.chunked_array([self._tables.some(self._table, name, extents)]))


TABLE = "samples"
_FEW = 256
"""Datapoints that are looked up one by one."""


class Samples:
    """The table `samples`; a column is read when it is first used."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.types = dict(tables.types[TABLE])
        self.count = tables.rows(TABLE)
        """D."""
        self._asked = False

    def column(self, name: str) -> pa.ChunkedArray:
        """[D]. Raises Damaged, naming the file, where it is not what was committed."""
        return self._tables.columns(TABLE, [name])[0]

    def at(self, names: Sequence[str], datapoints: pa.Array) -> dict[str, pa.ChunkedArray | pa.Array]:
        """Entries of some columns at some datapoints, in any order; NULL where the datapoint is. Raises as `column`.

        The first time, little more is read than those: a process that asks once need not read whole columns.
        """
        if self._asked or not names or len(datapoints) > _FEW:
            return {name: self.column(name).take(datapoints) for name in names}
        self._asked = True
        distinct = np.unique(np.asarray(datapoints.drop_null(), dtype=np.int64))
        places = pc.index_in(datapoints, pa.array(distinct))
        with self._tables.reading():
            return {name: self._tables.some(TABLE, name, distinct).take(places) for name in names}

    def numbers(self) -> tuple[Integers, Integers]:
        """int64[S]: the first datapoint of each sample, by dataset and number; and int64[D]: the sample that each
        datapoint is of, -1 where that is not known.
        """
        encoded = self.column("dataset").combine_chunks().dictionary_encode()
        order = np.argsort(np.argsort(encoded.dictionary.to_pylist()))
        datasets = np.append(order, -1)[np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)]
        known = np.flatnonzero(np.asarray(self.column("sample").is_valid()))
        pairs = np.stack([datasets[known], np.asarray(self.column("sample").drop_null(), dtype=np.int64)])
        _, first, codes = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        found = np.full(self.count, -1)
        found[known] = codes.reshape(-1)
        return known[first], found

    def unknown(self) -> tuple[Integers, Integers]:
        """Steps and numbers of the datapoints, ascending, that stand for slots whose row is not known."""
        return self._unknown

    @cached_property
    def _unknown(self) -> tuple[Integers, Integers]:
        datapoints = np.flatnonzero(np.asarray(self.column("row").is_null()))
        return np.asarray(self.column("step"), dtype=np.int64)[datapoints], datapoints


def as_numpy(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """An Arrow column as an array, masked where numbers are NULL; texts as objects, NULL as None."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
    if not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    mask = np.asarray(column.is_null())
    zero = False if pa.types.is_boolean(column.type) else 0
    return np.ma.MaskedArray(column.fill_null(zero).to_numpy(zero_copy_only=False), mask=mask)
