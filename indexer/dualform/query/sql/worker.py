"""The process that runs free SQL: it is given tables, holds no file, and can reach none.

It reads from standard input an Arrow stream per table and a statement per view, then questions; it writes an answer
per question. Every message is a kind (one byte), a length (eight bytes, little-endian) and so many bytes. Light on
purpose: no torch, no faiss. It ends with the process that started it, whose number it is told.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import duckdb
import pyarrow as pa

try:
    import resource
except ImportError:  # Windows: DuckDB's own limits, and the asker's patience, are all there is
    resource = None  # type: ignore[assignment]

HEADER = struct.Struct("<cQ")
TABLE, VIEW, STATEMENT, ROWS, ERROR, READY = b"T", b"V", b"S", b"R", b"E", b"K"
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

_EVERY_KIND = "SELECT now() AS a, [1.5] AS b, 1::HUGEINT AS c, DATE '2020-01-02' AS d, 'x'::BLOB AS e, 1.5 AS f"
"""Of values that are converted by what is loaded as it is needed: modules, a time zone."""
_BATCH = 2048
"""Rows that are read at a time: one of DuckDB's own vectors."""
_FORMLESS = re.compile(
    r"\bTIME WITH TIME ZONE\b|\b(UHUGEINT|BIT|BIGNUM|VARINT|VARIANT)\b|\bTIME\[|(?<=[ (])TIME\b(?! (WITH TIME )?ZONE)"
)
"""Types that Arrow would have otherwise, as DuckDB calls them: times of day lose their offset, 128 bits without a sign
get one, bits, large numbers and variants come as DuckDB keeps them, and 24:00:00 within a list or a struct becomes
00:00:00."""
_DIGITS = 15
"""Of a decimal that every double keeps."""
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""Of the units of a time of day."""
_STATM = Path("/proc/self/statm")
"""Its first number is the address space in use, in pages."""


class Refusal(Exception):
    """A statement that is not answered; the message is for its asker."""


def write(stream: IO[bytes], kind: bytes, content: bytes) -> None:
    stream.write(HEADER.pack(kind, len(content)))
    stream.write(content)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next message; None at the end of the stream."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    kind, length = HEADER.unpack(head)
    content = stream.read(length)
    return (kind, content) if len(content) == length else None


def main(parent: int, memory: int) -> None:
    """`parent`: the process that started this one; `memory`: bytes that a statement may take."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not break into the answers
    connection = duckdb.connect(":memory:")
    locked = False
    while (message := read(questions)) is not None:
        kind, content = message
        if kind == TABLE:
            _load(connection, content)
            continue
        if kind == VIEW:
            connection.execute(content.decode())
            continue
        if not locked:
            _load_what_answers_need()
            _lock(connection, memory)
            locked = True
            write(answers, READY, b"")
        request = json.loads(content)
        try:
            write(answers, ROWS, answer(connection, **request))
        except (Refusal, duckdb.Error, MemoryError) as error:
            write(answers, ERROR, (str(error) or "not enough memory").encode())
        except Exception as error:  # nobody foresaw it, so what it says is not for strangers
            write(answers, ERROR, f"the statement's answer could not be written ({type(error).__name__}).".encode())


def _load(connection: duckdb.DuckDBPyConnection, content: bytes) -> None:
    """Make a table of an Arrow stream whose schema carries its name."""
    table = pa.ipc.open_stream(content).read_all()
    name = table.schema.metadata[b"name"].decode().replace('"', '""')
    connection.register("incoming", table)
    connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM incoming')
    connection.unregister("incoming")


def _end_with(parent: int) -> None:
    """A pipe that is closed is not seen while a statement runs."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _load_what_answers_need() -> None:
    """And nothing after it: Arrow would look for pandas, which takes a second where it is."""
    import zoneinfo  # noqa: F401  # for times that have a zone; here, as the asker loads this module, too

    import pyarrow.compute  # noqa: F401  # for casts

    sys.meta_path.clear()


def _lock(connection: duckdb.DuckDBPyConnection, memory: int) -> None:
    """Bounds for this process that cannot be taken back."""
    connection.execute(f"SET memory_limit = '{memory // 1024} KiB'")
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = '{value}'")
    connection.execute("SET lock_configuration = true")
    simplified(connection.sql(_EVERY_KIND).to_arrow_table())
    if resource is None:
        return
    if _STATM.exists():  # Linux; elsewhere DuckDB's own limit is all there is
        most = int(_STATM.read_text().split()[0]) * resource.getpagesize() + _SPARE * memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # No file and no connection, also where DuckDB's settings should leave a way.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def answer(connection: duckdb.DuckDBPyConnection, sql: str, rows: int, size: int, seconds: float) -> bytes:
    """The rows of one SELECT as an Arrow stream, so many at most and of so many bytes.

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
        found = cursor.sql(statements[0])
        for name, kind in zip(found.columns, found.types, strict=True):
            if _FORMLESS.search(str(kind)):
                raise _formless(name, str(kind))
        plain = simplified(_rows(found.to_arrow_reader(_BATCH), rows, size))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    answered = sink.getvalue()
    if answered.size > size:
        raise _too_large(size)
    return bytes(answered)


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


def simplified(table: pa.Table) -> pa.Table:
    """The same rows as 64-bit integers, doubles, booleans and texts: what a column of an answer can be.

    A column's type follows from DuckDB's, whatever its values are: whole numbers are integers, decimals are doubles.
    Dates, lists and whatever else become texts. Raises Refusal for a number that would be rounded.
    """
    names = _distinct(table.column_names)
    return pa.table([_simple(name, table.column(i)) for i, name in enumerate(names)], names=names)


def _simple(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return column
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and not kind.scale):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise _rounded(name, "whole number of more than 64 bits") from None
    if pa.types.is_decimal(kind):
        doubles = column.cast(pa.string()).cast(pa.float64())  # a cast without text in between may round twice
        if kind.precision > _DIGITS and not all(map(_is_exact, doubles.to_pylist(), column.to_pylist())):
            raise _rounded(name, f"decimal of more than {_DIGITS} digits")
        return doubles
    if pa.types.is_null(kind):
        return column.cast(pa.float64())
    if pa.types.is_time(kind) and pa.compute.any(pa.compute.equal(column.cast(pa.int64()), _DAY[kind.unit])).as_py():
        raise _formless(name, str(kind))  # Python's times of day end before 24:00:00, which it reads as 00:00:00
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError):  # Python's dates end with the year 9999, and none is infinite
        raise _formless(name, str(kind)) from None
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in values], pa.string())])


def _formless(name: str, kind: str) -> Refusal:
    return Refusal(
        f"Column {name} has a value of type {kind}, which sql cannot return. Select CAST({name} AS VARCHAR)."
    )


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
