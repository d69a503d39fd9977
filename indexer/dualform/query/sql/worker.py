"""The process that runs free SQL: it is given tables, holds no file, and can reach none.

It reads messages from a pipe: what it begins with as JSON, an Arrow stream per table, then a JSON object per statement.
It answers READY once it has begun, and then each statement by ROWS and an Arrow stream, or by ERROR and why there are
no rows. Light on purpose: no torch, no faiss. It ends with the process that
started it, whose number it is told.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

try:
    import resource
except ImportError:  # Windows: DuckDB's own limits, and the asker's patience, are all there is
    resource = None  # type: ignore[assignment]

READY, ROWS, ERROR = b"ready   ", b"rows    ", b"error   "
"""How messages begin. Of eight bytes each, as Arrow's numbers are to lie at multiples of eight."""
SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "2",
    "temp_directory": "",
    "max_temp_directory_size": "0KB",
    "enable_external_access": "false",  # last: it locks the others about files
}
_SPARE = 4
"""Address space beyond what the tables take, as many times the memory of a statement: DuckDB's own limit does not bound
every allocation."""
_NICE = 10
"""How much a statement stands back on the processor: whoever waits for other answers goes first."""
_LOOK_SECONDS = 1.0
"""Between looks whether the process that started this one is there."""

_EVERY_KIND = "SELECT 1::HUGEINT AS c, 1.5 AS f, [1.5] AS b, now() AS a"
"""Of values that are converted by what is loaded as it is needed."""
_BATCH = 2048
"""Rows that are read at a time: one of DuckDB's own vectors."""
_NUMBERS = {"boolean", "null", "float", "double", "decimal", "hugeint", "ubigint", "bigint"}
_NUMBERS |= {f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer")}
"""Types of values that an answer has as such, as DuckDB calls them; others become texts."""
_NESTED = {"list", "array", "struct", "tuple", "map", "union"}
"""Types that become JSON."""
_NOT_JSON = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_WIDEST = 2**53 - 1
"""JavaScript rounds whole numbers beyond."""
_DIGITS = 15
"""Of a decimal that every double keeps."""
_STATM = Path("/proc/self/statm")
"""Its first number is the address space in use, in pages."""


class Refusal(Exception):
    """A statement that is not answered; the message is for its asker."""


def main(pipe: int, parent: int, memory: int) -> None:
    """`pipe`: the descriptor of its end; `parent`: the process that started this one; `memory`: bytes that a statement
    may take."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    asker, connection = Connection(pipe), duckdb.connect(":memory:")
    given = json.loads(asker.recv_bytes())
    for name in given["tables"]:
        connection.register("incoming", pa.ipc.open_stream(asker.recv_bytes()).read_all())
        connection.execute(f'CREATE TABLE "{name.replace(chr(34), 2 * chr(34))}" AS SELECT * FROM incoming')
        connection.unregister("incoming")
    for view in given["views"]:
        connection.execute(view)
    _load_what_answers_need()
    _lock(connection, memory)
    asker.send_bytes(READY)
    while True:
        try:
            request = json.loads(asker.recv_bytes())
        except EOFError:
            return
        try:
            asker.send_bytes(answer(connection, **request))
        except (Refusal, duckdb.Error, MemoryError) as error:
            asker.send_bytes(ERROR + (str(error) or "not enough memory").encode())
        except Exception as error:  # nobody foresaw it, so what it says is not for strangers
            what = f"the statement's answer could not be written ({type(error).__name__})."
            asker.send_bytes(ERROR + what.encode())


def _end_with(parent: int) -> None:
    """A pipe that is closed is not seen while a statement runs."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _load_what_answers_need() -> None:
    """And nothing after it: Arrow would look for pandas, which takes a second where it is."""
    import pyarrow.compute  # noqa: F401  # for casts; here, as the asker loads this module, too

    sys.meta_path.clear()


def _lock(connection: duckdb.DuckDBPyConnection, memory: int) -> None:
    """Bounds for this process that cannot be taken back."""
    connection.execute(f"SET memory_limit = '{memory // 1024} KiB'")
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = '{value}'")
    connection.execute("SET lock_configuration = true")
    _table(connection.sql(_EVERY_KIND), 1, memory)
    if resource is None:
        return
    if _STATM.exists():  # Linux; elsewhere DuckDB's own limit is all there is
        most = int(_STATM.read_text().split()[0]) * resource.getpagesize() + _SPARE * memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # No file and no connection, also where DuckDB's settings should leave a way.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def answer(connection: duckdb.DuckDBPyConnection, sql: str, rows: int, size: int, seconds: float) -> pa.Buffer:
    """The message with the rows of one SELECT, so many at most and of so many bytes.

    Raises Refusal, or what DuckDB raises.
    """
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise Refusal(f"sql takes one SELECT statement, not {len(statements)}.")
    if statements[0].type == duckdb.StatementType.MULTI:
        raise Refusal(
            "sql takes one SELECT statement, but this PIVOT is several. Name its values, for example "
            "SELECT * FROM slots PIVOT (count(*) FOR label IN (0, 1))."
        )
    if statements[0].type != duckdb.StatementType.SELECT:
        raise Refusal(f"Only SELECT is answered, not {statements[0].type.name}: SQL cannot change a memory.")
    _allow_seconds(seconds)
    with connection.cursor() as cursor:  # closing it ends the transaction
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        plain = _table(cursor.sql(statements[0]), rows, size)
    sink = pa.BufferOutputStream()
    sink.write(ROWS)
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    answered = sink.getvalue()
    if answered.size > len(ROWS) + size:
        raise _too_large(size)
    return answered


def _table(found: duckdb.DuckDBPyRelation, most_rows: int, most_bytes: int) -> pa.Table:
    """The rows as 64-bit integers, doubles, booleans and texts: what a column of an answer can be.

    A column's type follows from DuckDB's, whatever its values are: whole numbers are integers, decimals are doubles,
    lists, structs and the like are JSON, and all else is the text that DuckDB writes. Raises Refusal for a number that
    would be rounded.
    """
    kinds = [kind.id for kind in found.types]
    columns = ", ".join(_column(place, kind) for place, kind in enumerate(kinds, 1))
    rows, names = _rows(found.project(columns).to_arrow_reader(_BATCH), most_rows, most_bytes), _distinct(found.columns)
    plain = [_plain(*own) for own in zip(names, kinds, rows.columns, strict=True)]
    return pa.table(plain, names=names)


def _column(place: int, kind: str) -> str:
    """A column as Arrow is to have it."""
    if kind in _NUMBERS:
        return f"#{place} AS c{place}"
    return f"CAST({f'to_json(#{place})' if kind in _NESTED else f'#{place}'} AS VARCHAR) AS c{place}"


def _rows(reader: Any, most_rows: int, most_bytes: int) -> pa.Table:
    """What a reader yields, read no further than the limits."""
    batches, rows, held = [], 0, 0
    with reader:
        for batch in _batches(reader):
            rows += batch.num_rows
            if rows > most_rows:
                raise Refusal(f"The answer has more than {most_rows:,} rows. Add LIMIT, or aggregate.")
            held += batch.nbytes
            if held > most_bytes:
                raise _too_large(most_bytes)
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """What a reader yields. Raises Refusal with what DuckDB finds behind the first rows, which Arrow has as OSError."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise Refusal(str(error)) from None


def _too_large(most_bytes: int) -> Refusal:
    return Refusal(
        f"The answer takes more than {most_bytes / 2**20:.4g} MiB. Select fewer columns, add LIMIT, or aggregate."
    )


def _allow_seconds(seconds: float) -> None:
    """Processor time for one more statement; the asker kills this process sooner, unless it is gone itself."""
    if resource is None:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + 4 * seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _plain(name: str, kind: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    arrow = column.type
    if kind in _NESTED:
        return pa.chunked_array([pa.array(map(_json, column.to_pylist()), pa.string())])
    if pa.types.is_boolean(arrow) or pa.types.is_string(arrow):
        return column
    if pa.types.is_floating(arrow) or pa.types.is_null(arrow):
        return column.cast(pa.float64())
    if not pa.types.is_decimal(arrow) or not arrow.scale:
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise _rounded(name, "whole number of more than 64 bits") from None
    doubles = column.cast(pa.string()).cast(pa.float64())  # a cast without text in between may round twice
    if arrow.precision > _DIGITS and not all(map(_is_exact, doubles.to_pylist(), column.to_pylist())):
        raise _rounded(name, f"decimal of more than {_DIGITS} digits")
    return doubles


def _json(text: str | None) -> str | None:
    """What DuckDB writes as JSON, with texts for numbers that JSON lacks, or that JavaScript would round."""
    if text is None:
        return None
    found = json.loads(text, parse_constant=_NOT_JSON.__getitem__, parse_int=_whole)
    return json.dumps(found, ensure_ascii=False)


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= 17 and abs(int(digits)) <= _WIDEST else digits


def _rounded(name: str, what: str) -> Refusal:
    return Refusal(f"Column {name} has a {what}, which would be rounded. Select CAST({name} AS VARCHAR).")


def _is_exact(double: float | None, value: Decimal | None) -> bool:
    """Whether a double prints as the decimal."""
    return double is None or Decimal(repr(double)) == value


def _distinct(names: list[str]) -> list[str]:
    """Column names, a repeated one numbered: a, a_2; by the next number where another column has that name."""
    found, taken = dict[str, None](), set(names)
    for name in names:
        number, own = 1, name
        while own in found or (number > 1 and own in taken):
            number += 1
            own = f"{name}_{number}"
        found[own] = None
    return list(found)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
