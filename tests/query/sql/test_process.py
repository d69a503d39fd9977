"""The process that runs statements, and what stands around it: descriptors, pipes, forks, refreshes, values."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, Cancelled
from dualform.query.bounds import QuestionBounds
from dualform.query.sql import process
from dualform.query.sql.process import Sql
from dualform.query.view import View
from dualform.questions import SqlStatement
from dualform.store.files.ram_budget import resident_bytes
from dualform_client.client import Connection
from tests.cases import pairwise
from tests.query import arrays
from tests.service.held_engine import until
from tests.trainings import record_steps

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture(scope="module")
def memory():
    return arrays.memory({"fc": np.ones((4, 2), np.float32)}, {"label": [1, 2, 3, 4]})


@pytest.fixture
def engine(memory):
    with arrays.engine(memory) as engine:
        yield engine


def made_of(memory):
    made = Sql(View(memory, arrays.engine(memory)._view.backend, 1 << 20))
    yield made
    made.close()


sql = pytest.fixture(made_of)
going_on = pytest.fixture(scope="module")(made_of)
"""With one child for all tests of what it answers."""


def run(sql: Sql, statement: str):
    return sql.run(statement, lambda: None)


@pytest.mark.parametrize(
    "value",
    [
        "DATE '290000-01-01'",
        "'-infinity'::TIMESTAMP",
        "TIME '24:00:00'",
        "TIMETZ '10:00:00+02'",
        "TIMESTAMP '2020-01-02 03:04:05.5'",
        "TIMESTAMPTZ '2020-01-02 03:04:05+02'",
        "INTERVAL '1 day 2 hours'",
        "'\\xAA\\x00b'::BLOB",
        "md5_number('b')",
        "'0101'::BIT",
        "12345678901234567890123::BIGNUM",
        "42::VARIANT",
        "TIME_NS '10:00:00.123456789'",
        "uuid()",
        "'one'::ENUM('one', 'two')",
        "NULL::INTERVAL",
    ],
)
def test_a_value_that_is_no_number_is_the_text_that_duckdb_writes(going_on, value):
    found = run(
        going_on, f"WITH one AS MATERIALIZED (SELECT {value} AS a) SELECT a, CAST(a AS VARCHAR) AS text FROM one"
    )
    assert found["a"].tolist() == found["text"].tolist()


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("[1, NULL, 3]", [1, None, 3]),
        ("{'a': DATE '2020-01-02', 'b': [{'c': 'é\"'}]}", {"a": "2020-01-02", "b": [{"c": 'é"'}]}),
        ("MAP {'k': INTERVAL '1 day'}", {"k": "1 day"}),
        ("['nan'::DOUBLE, 'inf', '-inf', 0.5]", ["nan", "inf", "-inf", 0.5]),
        ("[9007199254740991, 9007199254740992, -9007199254740993]", [2**53 - 1, str(2**53), str(-(2**53) - 1)]),
        ("[TIME '24:00:00']", ["24:00:00"]),
        ("[42::VARIANT]", [42]),
        ("[md5_number('b'), 2]", ["190532336368564675417118094528692087698", 2]),
        ("ROW(1, 'x'::BLOB)", [1, "x"]),
        ("[1, 2]::INT[2]", [1, 2]),
        ("union_value(num := 2)", {"num": 2}),
    ],
)
def test_lists_structs_and_maps_are_json(going_on, value, read):
    text, none = run(going_on, f"SELECT {value} AS a UNION ALL SELECT NULL")["a"].tolist()
    assert json.loads(text, parse_constant=pytest.fail) == read
    assert none is None


@pytest.mark.parametrize(
    "value",
    [
        "18446744073709551615::UBIGINT",
        "sum(9223372036854775807) OVER ()",
        "123456789012345678901234567.8901234567::DECIMAL(38, 10)",
        "1234567890123456.7::DECIMAL(38, 1)",
        "12345678901234567890::DECIMAL(38, 0)",
    ],
)
def test_a_number_that_would_be_rounded_is_refused_by_column_and_the_child_goes_on(going_on, value):
    run(going_on, "SELECT 1")
    child = going_on._child
    with pytest.raises(BadInput, match=r"Column late .* CAST\(late AS VARCHAR\)"):
        run(going_on, f"SELECT slot, {value} AS late FROM slots")
    assert going_on._child is child
    assert run(going_on, f"SELECT CAST({value} AS VARCHAR) AS late").rows == 1


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *(("HUGEINT", own) for own in (-(2**127), 2**127 - 1, 2**64, -(2**63) - 1, -(2**63), 2**63 - 1)),
        *(("UBIGINT", own) for own in (2**63 - 1, 5)),
        *(("DECIMAL(38, 0)", own) for own in (2**64, -(2**63) - 1, -(2**63), 2**63 - 1)),
    ],
)
def test_whole_numbers_are_exact_or_refused_and_of_one_type(going_on, kind, number):
    statement = f"SELECT ({number})::{kind} AS a UNION ALL SELECT NULL ORDER BY a"
    if not -(2**63) <= number < 2**63:
        with pytest.raises(BadInput, match=r"Column a has a whole number of more than 64 bits.* CAST\(a AS VARCHAR\)"):
            run(going_on, statement)
        assert run(going_on, f"SELECT CAST(({number})::{kind} AS VARCHAR) AS a")["a"].tolist() == [str(number)]
        return
    found = run(going_on, statement)["a"]
    assert found.dtype == np.int64
    assert found.tolist() == [number, None]


@pytest.mark.parametrize(
    ("number", "kind"),
    pairwise(
        ["0.1", "-123456789012.345", "999999999999.999", "0.000000000000123"], ["DECIMAL(15, 3)", "DECIMAL(38, 15)"]
    ),
)
def test_decimals_are_doubles_that_print_alike(going_on, number, kind):
    found = run(going_on, f"SELECT ({number})::{kind} AS a, CAST(({number})::{kind} AS VARCHAR) AS text")
    assert found["a"].dtype == np.float64
    assert Decimal(repr(float(found["a"][0]))) == Decimal(found["text"][0])


def test_a_pivot_without_values_names_the_way(going_on):
    with pytest.raises(BadInput, match=r"this PIVOT is several\. Name its values, for example SELECT \* FROM slots"):
        run(going_on, "PIVOT slots ON label USING count(*)")
    assert run(going_on, "SELECT * FROM slots PIVOT (count(*) FOR label IN (0, 1))").rows


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT CASE WHEN range = 99999 THEN error('late') ELSE 1 END FROM range(100000)", "late"),
        ("SELECT (CASE WHEN range = 99999 THEN 'x' ELSE '1' END)::INT FROM range(100000)", "Could not convert"),
    ],
)
def test_what_goes_wrong_behind_the_first_rows_is_said_and_the_child_goes_on(going_on, statement, said):
    run(going_on, "SELECT 1")
    child = going_on._child
    with pytest.raises(BadInput, match=said):
        run(going_on, statement)
    assert going_on._child is child
    assert child.process.poll() is None


def test_names_of_labels_are_answered_without_the_tables_of_slots(tmp_path, monkeypatch):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path, label_names={"d": ["cat", "dog"]}, quiet=True),
        optimizer,
        1,
        lambda _: model(torch.ones(4, 3)).sum(),
        label=[0, 1, 1, 0],
        dataset="d",
    )
    given = []
    monkeypatch.setattr(process, "_tables", partial(_noted, given, process._tables))
    with dualform.open(tmp_path) as memory:
        assert memory.sql("SELECT name FROM Labels ORDER BY label").records() == [{"name": "cat"}, {"name": "dog"}]
        assert memory.sql('SELECT count(*) AS n FROM "labels"').records() == [{"n": 2}]
        assert given == [{"labels"}]
        assert memory.sql("SELECT count(*) AS n FROM labels, slots").records() == [{"n": 8}]
        assert memory.sql("SELECT count(*) AS n FROM labels").records() == [{"n": 2}]
    assert len(given) == 2  # a child that has all of them is not given up


def test_statements_about_attribution_need_no_slots_and_keep_the_tables_of_those_before(sql, monkeypatch):
    given = []
    monkeypatch.setattr(process, "_tables", partial(_noted, given, process._tables))
    for statement in (
        "SELECT name FROM labels",
        "SELECT max(query) AS q FROM adjoints WHERE sample = 3 AND (value < 0)",
        "SELECT count(*) AS n FROM retrainings JOIN left_out USING (name, set) WHERE query = 1",
        "SELECT name FROM labels",
    ):
        run(sql, statement)
    assert given == [{"labels"}, {"labels", "adjoints"}, {"labels", "adjoints", "retrainings", "left_out"}]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) AS n FROM query_table('sl' || 'ots') WHERE (SELECT count(*) FROM labels) < 9",
        "SELECT count(*) AS n FROM adjoints RIGHT JOIN query /* a\n call */ ('FROM sl' || 'ots') ON true",
        "SELECT count(*) AS n FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb' || '_tables()')), "
        "(SELECT count(*) FROM labels)",
    ],
)
def test_a_statement_that_begins_a_child_is_answered_as_by_one_that_has_every_table(sql, going_on, statement):
    first = run(sql, statement).records()
    run(going_on, "SELECT count(*) FROM slots")
    assert run(going_on, statement).records() == first
    assert first[0]["n"] >= 4


def test_a_statement_that_is_wrong_about_labels_is_refused_with_the_message_of_all_tables(sql):
    with pytest.raises(BadInput) as first:
        run(sql, "SELECT nothing FROM labels")
    assert sql._given is None
    with pytest.raises(BadInput) as again:
        run(sql, "SELECT nothing FROM labels")
    assert str(first.value) == str(again.value)


def _noted(given: list, tables, view, names):
    found = tables(view, names)
    given.append(set(found))
    return found


def test_statements_are_answered_beside_thousands_of_open_descriptors(sql):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip(f"at most {before[1]} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert run(sql, "SELECT 1 AS one").records() == [{"one": 1}]
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_refresh_does_not_wait_for_a_statement_whose_child_ends_with_it(engine):
    engine.sql("SELECT 1")
    before, over, refused = engine._sql, threading.Event(), []

    def ask() -> None:
        try:
            engine.ask(SqlStatement(ENDLESS), over.is_set)
        except Cancelled as error:
            refused.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(before._lock.locked)
    moved = patch.object(type(engine._view.snapshot), "moved", lambda self: True)
    try:
        with moved, patch("dualform.query.engine.opened_again", lambda seen, segments: seen):
            refreshing = threading.Thread(target=engine.refresh)
            refreshing.start()
            refreshing.join(10)
            assert not refreshing.is_alive()
        assert asking.is_alive()
        assert engine.sql("SELECT 1 AS one").records() == [{"one": 1}]
    finally:
        over.set()
        asking.join()
        refreshing.join()
    assert len(refused) == 1
    assert before._child is None


def test_whoever_waits_for_a_child_that_does_not_read_stops_when_it_has_to(sql):
    run(sql, "SELECT 1")
    os.kill(sql._child.process.pid, signal.SIGSTOP)
    stopped, given = threading.Event(), []

    def check() -> None:
        if stopped.is_set():
            raise Cancelled("given up")

    def ask() -> None:
        try:
            sql.run("SELECT 1 -- " + "x" * 1_000_000, check)
        except Cancelled as error:
            given.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(0.3)  # so that the pipe is full
    stopped.set()
    asking.join(10)
    try:
        assert len(given) == 1
    finally:
        if sql._child is not None:
            os.kill(sql._child.process.pid, signal.SIGCONT)
        asking.join()
    assert run(sql, "SELECT 1 AS one").records() == [{"one": 1}]


FORKING = """
import gc, io, os, sys, threading
import numpy as np
from dualform.query.sql.process import Sql
from dualform.query.view import View
from tests.query import arrays

memory = arrays.memory({"fc": np.ones((4, 2), np.float32)}, {"label": [1, 2, 3, 4]})
sql = Sql(View(memory, arrays.engine(memory)._view.backend, 1 << 20), seconds=10)
sql.run("SELECT 1", lambda: None)

forked = []

def behind(frame, event, act):  # every write, a fork that ends as any process does
    if event == "c_return" and act.__name__ == "write" and len(forked) < 4:
        forked.append(os.fork())
        if not forked[-1]:
            for writer in [own for own in gc.get_objects() if isinstance(own, io.BufferedWriter) and not own.closed]:
                writer.flush()  # as the end of any process does
            os._exit(0)
        os.waitpid(forked[-1], 0)

threading.setprofile(behind)
found = sql.run("SELECT 2 AS two", lambda: None).records()
threading.setprofile(None)
print(found, len(forked) > 0, sql._child.process.pid, sep="\\n", flush=True)
sql.run("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3", lambda: None)
"""


def test_a_fork_in_the_midst_of_a_message_sends_no_part_of_it_again_and_the_child_ends_with_its_process():
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True) as forking:
        found, forked, child = (forking.stdout.readline().strip() for _ in range(3))
        assert (found, forked) == ("[{'two': 2}]", "True")
        time.sleep(0.3)  # so that the long statement has begun
        forking.send_signal(signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{child}"))


def test_a_child_counts_as_the_processs_own_is_replaced_if_it_was_killed_and_ends_if_it_is_retired(sql):
    without = resident_bytes()
    assert run(sql, "SELECT count(*) AS n FROM slots")["n"] == [4]
    child = sql._child
    with open(f"/proc/{child.process.pid}/status") as file:
        held = 1024 * int(next(line for line in file if line.startswith("VmRSS")).split()[1])
    assert held > 20 << 20
    assert resident_bytes() > without + held // 2
    child.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    assert run(sql, "SELECT count(*) AS n FROM slots")["n"] == [4]
    assert sql._child is not child
    child = sql._child.process.pid
    sql.retire()
    assert not os.path.exists(f"/proc/{child}")
    assert resident_bytes() < without + held // 2
    assert run(sql, "SELECT 1 AS one").records() == [{"one": 1}]  # by whoever still holds the old view
    assert sql._child is None


def test_a_servers_bound_of_answers_is_one_of_statements(engine):
    bounds = QuestionBounds(answer_bytes=1 << 20)
    with pytest.raises(BadInput, match="The answer takes more than 1 MiB"):
        engine.ask(SqlStatement("SELECT repeat('x', 1000) FROM range(3000)"), None, bounds)
    assert engine.ask(SqlStatement("SELECT 1 AS one"), None, bounds).rows == 1


def test_a_statement_has_less_time_than_a_client_waits_for_it():
    assert Connection("127.0.0.1:1").timeout > process.SECONDS
