"""Free SQL over a snapshot's tables, in a process of its own with limits (worker.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from multiprocessing.connection import Pipe
from typing import TypeVar

import pyarrow as pa

from dualform.answers import Columns
from dualform.errors import BadInput, DualformError, TimedOut
from dualform.query.attended import attended
from dualform.query.sql.worker import ERROR, READY, ROWS
from dualform.query.view import Check, View
from dualform.store.files.ram_budget import CHILDREN
from dualform.store.maintenance import attributions
from dualform.store.reading.shard_tables import as_numpy
from dualform.store.tables import alike_but_for_case, extents_table, view_name, view_statements

MOST_ROWS = 1_000_000
SECONDS = 50.0
"""Less than a client waits by default, so that it is told what to do about its statement."""
MEMORY = 1 << 30
"""Bytes that a statement may take in the child, beside the tables."""
ANSWER = 256 << 20
"""Bytes of an answer, as it comes from the child."""
_HIDDEN = {"key_rows", "random_states"}
"""Large, and of no use without the files."""
_START_SECONDS = 50.0
"""In which the child must have begun, and read its tables."""
_POLL_SECONDS = 0.1
_WORD = re.compile(r"\w+")
_CATALOG = (
    *("information_schema", "duckdb_", "pg_", "pragma_", "sqlite_", "show", "describe", "summarize"),
    *("query", "json_execute"),
)
"""How the words begin by which a statement asks which tables there are, or runs what a text in it says, which may."""
_QUERY_CALLED = re.compile(r"query\W*\(|/\*|--", re.IGNORECASE)
"""Where `query` may be no column; a comment may hide the parenthesis."""
Found = TypeVar("Found")
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that the child may need to find libraries."""


class Sql:
    """Runs statements one after the other in a child that starts with the first one and is used again."""

    def __init__(
        self,
        view: View,
        seconds: float = SECONDS,
        most_rows: int = MOST_ROWS,
        memory: int = MEMORY,
        most_bytes: int = ANSWER,
    ) -> None:
        """`memory`: bytes that a statement may take in the child; `most_bytes`: of an answer."""
        self._view, self._seconds, self._most_rows = view, seconds, most_rows
        self.memory, self.most_bytes = memory, most_bytes
        self._child: _Child | None = None
        self._given: frozenset[str] | None = None
        """The tables that the child has; None for all of them."""
        self._lock = threading.Lock()
        self._retired = False

    def run(self, statement: str, check: Check, most_bytes: float = inf) -> Columns:
        """The rows of one SELECT. `most_bytes`: of this answer, where that is less than of any.

        Raises BadInput with DuckDB's message, or where it is no single SELECT or has too large an answer; TimedOut.
        """
        if not isinstance(statement, str) or not statement.strip():
            raise BadInput("the statement is blank.", hint="Write a SELECT over slots or steps.", field="statement")
        began = time.perf_counter()
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            check()
        try:
            table = self._ask(statement, int(min(self.most_bytes, most_bytes)), check)
        except BadInput:
            raise  # the child answered, and can answer again
        except BaseException:
            self._stop()
            raise
        finally:
            self._lock.release()
            self._stop_if_retired()
        columns = {name: as_numpy(table[name]) for name in table.column_names}
        return Columns(columns, self._view.scan(began))

    def close(self) -> None:
        with self._lock:
            self._stop()

    def retire(self) -> None:
        """Have the child end with the statement that it runs, or at once, without waiting for it."""
        self._retired = True
        self._stop_if_retired()

    def _stop_if_retired(self) -> None:
        # Whoever has the lock comes by here once it is let go of.
        if self._retired and self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def _ask(self, statement: str, size: int, check: Check) -> pa.Table:
        """By a child that has what the statement names, or all tables: those of slots take seconds to hand over."""
        named = _logs_named(statement, self._view)
        if self._child is not None and self._given is not None and not (named and named <= self._given):
            named = named and named | self._given  # so that statements in turn do not start it each time
            self._stop()
        if self._child is not None and self._child.process.poll() is not None:
            self._stop()  # somebody ended it, as the system does if memory is short
        if self._child is None:
            self._given = named or None
        try:
            return self._asked(statement, size, check)
        except BadInput:
            if self._given is None:
                raise
        self._stop()  # it may have named a table in a way that is not seen
        return self._asked(statement, size, check)

    def _asked(self, statement: str, size: int, check: Check) -> pa.Table:
        request = {"sql": statement, "rows": self._most_rows, "size": size, "seconds": self._seconds}
        child = self._child
        try:
            child = child or self._start(check)
            found = self._attended(partial(child.ask, request), self._seconds, check)
        except DualformError:
            raise  # TimedOut and Cancelled are OSErrors, too
        except (OSError, EOFError):
            self._stop()
            if child is None:
                raise DualformError(
                    "The process that runs SQL did not start.",
                    hint="Run python -m dualform.query.sql.worker to see why.",
                ) from None
            raise BadInput(
                "The statement exceeded its limit of memory or time.",
                hint="Aggregate, or add a WHERE clause.",
                field="statement",
            ) from None
        kind, content = found[: len(ERROR)], memoryview(found)[len(ERROR) :]
        if kind == ERROR:
            raise _refused(str(content, "utf-8").strip())
        return pa.ipc.open_stream(content).read_all()

    def _start(self, check: Check) -> _Child:
        if os.name == "nt":
            raise BadInput(
                "sql is not available on Windows.",
                hint="Connect to a server on Linux or macOS (dualform serve), or open slots.duckdb with duckdb.",
                field="statement",
            )
        views = _views(self._view) if self._given is None else []
        child = self._child = _Child(self.memory, self.most_bytes)
        tables = _tables(self._view, self._given)
        self._attended(partial(child.begin, tables, views), _START_SECONDS, check)
        return child

    def _attended(self, work: Callable[[], Found], seconds: float, check: Check) -> Found:
        """What the child does, ended with it. Raises TimedOut after so many seconds, and what `check` raises."""
        deadline = time.monotonic() + seconds

        def in_time() -> None:
            check()
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"the statement took longer than {seconds:g} seconds.",
                    hint="Aggregate, or add a WHERE.",
                    field="statement",
                )

        assert self._child is not None, "it was started"
        return attended(work, self._child.process.kill, in_time)

    def _stop(self) -> None:
        child, self._child, self._given = self._child, None, None
        if child is not None:
            child.close()


class _Child:
    """The process, and the pipe to it."""

    def __init__(self, memory: int, most_bytes: int) -> None:
        """`memory`: bytes that a statement may take; `most_bytes`: of an answer."""
        path = [folder for folder in sys.path if os.path.isabs(folder)]
        begin = f"import sys; sys.path[:] = {path!r}; from dualform.query.sql.worker import main"
        self._pipe, theirs = Pipe()
        self._most_bytes = most_bytes
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", f"{begin}; main({theirs.fileno()}, {os.getpid()}, {memory})"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                # Whatever a statement finds out of its process, it is nothing of ours.
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
            )
        CHILDREN.add(self.process.pid)

    def begin(self, tables: dict[str, pa.Table], views: list[str]) -> None:
        """Hand over what statements are asked of. Raises OSError or EOFError where the process has ended."""
        self._pipe.send_bytes(json.dumps({"tables": list(tables), "views": views}).encode())
        for table in tables.values():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            self._pipe.send_bytes(sink.getvalue())
        self._pipe.recv_bytes(len(READY))

    def ask(self, request: dict[str, object]) -> bytes:
        """The kind of answer, and its content. Raises as `begin`."""
        self._pipe.send_bytes(json.dumps(request).encode())
        return self._pipe.recv_bytes(len(ROWS) + self._most_bytes)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        CHILDREN.discard(self.process.pid)
        self._pipe.close()


def _tables(view: View, given: frozenset[str] | None) -> dict[str, pa.Table]:
    """Every table of the snapshot under its own name, or the `given` ones; slots are views over them, so that none is
    sent on its own.
    """
    names = [name for name in view.snapshot.manifest.tables() if name not in _HIDDEN and name in (given or (name,))]
    own = [name for name in attributions.TABLES if name not in view.snapshot.spaces]  # which older memories may have
    kept = {name: attributions.table(view.snapshot, name) for name in own if name in (given or (name,))}
    return {**view.snapshot.whole_tables(names), **kept}


def _logs_named(statement: str, view: View) -> frozenset[str]:
    """The tables that a statement names, where none of them has a row a slot or datapoint, and it does not ask which
    tables there are; else none.
    """
    manifest, words = view.snapshot.manifest, set(_WORD.findall(statement.lower()))
    tables = {name for name in (*manifest.tables(), *attributions.TABLES) if name.lower() in words}
    if not tables.isdisjoint(attributions.TABLES) and not _QUERY_CALLED.search(statement):
        words -= {"query", "sample"} - {*manifest.spaces[1:]}  # their columns
    large = {
        "samples",
        *manifest.spaces,
        *map(extents_table, manifest.spaces),
        view_name(manifest.spaces[0], manifest.spaces),
    }
    if not words.isdisjoint(map(str.lower, large)) or any(word.startswith(_CATALOG) for word in words):
        return frozenset()
    return frozenset(tables - _HIDDEN)


def _refused(said: str) -> BadInput:
    """What the child said, without DuckDB's kind of error; what it says of names that are near is the hint."""
    message, _, near = said.partition("\n")
    if not near.startswith(("Candidate bindings: ", "Did you mean ")):
        hint = "To remove samples, use dualform delete." if said.startswith("Only SELECT ") else ""
        return BadInput(re.sub(r"^\w+ Error: ", "", said), hint=hint, field="statement")
    message = re.sub(r"^\w+ Error: ", "", message)
    column = re.search(r'Referenced column "([^"]*)" not found', message)
    near = near.partition("\n")[0].replace('"', "").replace("Candidate bindings", "Names like it")
    return BadInput(f"unknown column {column[1]!r}." if column else message, hint=near, field="statement")


def _views(view: View) -> list[str]:
    """What makes the views of the slots of each space. Raises BadInput where SQL would take one column for another."""
    manifest = view.snapshot.manifest
    for space in manifest.spaces:
        if pair := alike_but_for_case([*manifest.columns["samples"], *manifest.columns[space]]):
            raise BadInput(
                f"Columns {pair[0]!r} and {pair[1]!r} differ only in case, which SQL ignores.",
                hint="Record the training again with other names, or read the columns with memory.slots(ids).",
                field="statement",
            )
    return view_statements(manifest.spaces, manifest.columns, merged=True)
