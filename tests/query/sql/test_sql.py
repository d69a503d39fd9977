"""Free SQL reads the snapshot's tables and reaches nothing else; the process that runs it, and its bounds."""

from __future__ import annotations

import os
import pwd
import random
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
from dualform.errors import BadInput, BadMask, Cancelled, TimedOut
from dualform.query.bounds import QuestionBounds
from dualform.query.sql import process
from dualform.query.sql.process import Sql
from dualform.query.view import View
from dualform.questions import SqlStatement
from dualform.store.files.ram_budget import resident_bytes
from dualform_client.connection import Connection
from tests.cases import pairwise
from tests.query import arrays
from tests.reliability import report, rounds, soaking
from tests.service.held_engine import until
from tests.trainings import record_steps


@pytest.fixture(scope="module")
def memory():
    columns = {
        "dataset": ["mnist", "mnist", None, "fashion"],
        "label": [1, None, 3, 4],
        "share": [0.5, None, 1.5, 2.0],
        "seen": [True, None, False, True],
        "note": ["a", None, "ü", "'"],
    }
    types = {"share": "DOUBLE", "seen": "BOOLEAN", "note": "VARCHAR"}
    return arrays.memory({"fc": np.ones((4, 2), np.float32)}, columns, types=types, defects=[(0, "fc", "made up")])


@pytest.fixture(scope="module")
def engine(memory):
    with arrays.engine(memory) as engine:
        yield engine


def test_a_select_comes_back_by_column(engine):
    found = engine.sql("SELECT label, share, seen, note, dataset FROM slots ORDER BY slot DESC")
    assert found["label"].tolist() == [4, 3, None, 1]
    assert found["label"].dtype == np.int64
    assert found["share"].tolist() == [2.0, 1.5, None, 0.5]
    assert found["seen"].tolist() == [True, False, None, True]
    assert found["note"].tolist() == ["'", "ü", None, "a"]
    assert found["dataset"].dtype == object


def test_every_kind_of_value_becomes_a_number_a_boolean_or_a_text(engine):
    found = engine.sql(
        "SELECT sum(label) a, 1.25 b, NULL c, DATE '2020-01-02' d, [1, 2] e, "
        "5::HUGEINT f, 1::UTINYINT g, {'x': 1} h, count(*) i, true j, 1 AS j FROM slots"
    )
    assert found.records() == [
        {"a": 8, "b": 1.25, "c": None, "d": "2020-01-02", "e": "[1, 2]", "f": 5, "g": 1}
        | {"h": "{'x': 1}", "i": 4, "j": True, "j_2": 1}
    ]


def test_an_answer_without_rows_keeps_its_columns(engine):
    found = engine.sql("SELECT slot, note FROM slots WHERE false")
    assert found.keys() == ("slot", "note")
    assert found.rows == 0


def test_the_other_tables_are_there(engine):
    assert engine.sql("SELECT reason FROM defects").records() == [{"reason": "made up"}]
    assert engine.sql("FROM steps SELECT step, lr").records() == [{"step": 0, "lr": 0.1}]
    assert engine.sql("SELECT file FROM segments").rows == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE slots",
        "DELETE FROM slots",
        "UPDATE slots SET label = 1",
        "INSERT INTO defects VALUES (1, 'x', 'y')",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE slots",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT * FROM nope",
        "COPY slots TO 'dualform-sql-test'",
        "COPY (SELECT 1) TO 'dualform-sql-test'",
        "ATTACH 'dualform-sql-test'",
        "SET memory_limit = '100GB'",
        "RESET lock_configuration",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "SELECT * FROM read_csv('/etc/hosts')",
        "SELECT * FROM read_text('/etc/hosts')",
        "SELECT * FROM read_blob('/etc/hosts')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/hosts'",
        "SELECT * FROM 'https://example.org/x.csv'",
        "SELECT * FROM query('DROP TABLE slots')",
        "EXPORT DATABASE 'dualform-sql-test'",
        "PREPARE x AS SELECT 1",
        "BEGIN",
        "COMMIT",
        "WITH x AS (DELETE FROM slots RETURNING *) SELECT * FROM x",
        "SELECT * FROM table",
        "SELECT * FROM connection",
    ],
)
def test_anything_but_a_select_over_the_tables_is_refused(engine, statement):
    with pytest.raises(BadInput) as caught:
        engine.sql(statement)
    assert "Traceback" not in str(caught.value)
    assert engine.sql("SELECT count(*) n FROM slots").records() == [{"n": 4}]
    assert not os.path.exists("dualform-sql-test")


def test_a_statement_that_takes_too_long_is_stopped_and_the_next_one_answered(memory):
    sql = Sql(View(memory, arrays.engine(memory)._view.backend, 1 << 20), seconds=1.0)
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"
    try:
        with pytest.raises(TimedOut, match="longer than 1 seconds"):
            sql.run(endless, lambda: None)
        assert sql.run("SELECT 1 AS one", lambda: None).records() == [{"one": 1}]
    finally:
        sql.close()


def test_an_asker_that_goes_away_stops_the_statement(engine):
    with pytest.raises(Cancelled):
        engine.ask(SqlStatement("SELECT count(*) FROM range(1000000) a, range(1000000) b"), lambda: True)
    assert engine.sql("SELECT 1 AS one").records() == [{"one": 1}]


def test_rows_and_memory_are_limited(memory, engine):
    with pytest.raises(BadInput, match=r"more than 1,000,000 rows\. Add LIMIT, or aggregate"):
        engine.sql("SELECT * FROM range(2000000)")
    with pytest.raises(BadInput):
        engine.sql("SELECT list(range) FROM range(1000000000)")
    assert engine.sql("SELECT 1 AS one").records() == [{"one": 1}]


def test_the_child_reads_no_environment_and_sees_no_file(engine):
    with pytest.raises(BadInput):
        engine.sql("SELECT getenv('HOME')")
    assert engine.sql("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL").rows == 0


def test_columns_that_differ_in_case_alone_are_not_taken_for_one_another():
    columns = {"w": [0, 1, 2, 3], "W": [3, 2, 1, 0]}
    types = {"w": "BIGINT", "W": "BIGINT"}
    memory = arrays.memory({"fc": np.ones((4, 2), np.float32)}, columns, types=types)
    with arrays.engine(memory) as engine:
        with pytest.raises(BadInput, match="Columns 'w' and 'W' differ only in case, which SQL ignores"):
            engine.sql('SELECT "W" FROM slots')
        with pytest.raises(BadMask, match="Columns 'w' and 'W' differ only in case, which SQL ignores"):
            engine.topk("fc", np.ones((1, 2), np.float32), 4, where="w = 1")
        assert len(engine.topk("fc", np.ones((1, 2), np.float32), 4, where="slot < 3").ids) == 3
        assert engine.slots([1])["W"].tolist() == [2]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("SELECT 1 a, 2 a, 3 a_2", {"a": 1, "a_3": 2, "a_2": 3}),
        ("SELECT 1 a_2, 2 a, 3 a, 4 a", {"a_2": 1, "a": 2, "a_3": 3, "a_4": 4}),
    ],
)
def test_a_name_that_occurs_again_is_numbered_by_one_that_is_free(engine, statement, names):
    assert engine.sql(statement).records() == [names]


SECRET, SEED = "a-secret-of-the-environment", 17
SECONDS = 1.0


@pytest.fixture(scope="module")
def few():
    columns = {"dataset": ["mnist", "mnist", None, "fashion"], "label": [1, None, 3, 4]}
    return arrays.memory({"fc": np.ones((4, 2), np.float32)}, columns)


@pytest.fixture
def bounded(few, monkeypatch, tmp_path):
    monkeypatch.setenv("DUALFORM_SECRET", SECRET)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secret.csv").write_text(f"{SECRET}\n")
    view = View(few, arrays.engine(few)._view.backend, 1 << 20)
    made = Sql(view, memory=256 << 20, most_bytes=1 << 20)
    yield made
    made.close()


def ran(bounded: Sql, statement: str):
    return bounded.run(statement, lambda: None)


def test_the_child_has_no_environment_stands_back_opens_nothing_and_answers_so_many_bytes_at_most(bounded):
    ran(bounded, "SELECT 1")
    child = bounded._child.pid
    with open(f"/proc/{child}/environ", "rb") as file:
        assert [one for one in file.read().split(b"\0") if one and not one.startswith(b"LD_LIBRARY_PATH=")] == []
    with open(f"/proc/{child}/limits") as file:
        line = next(line for line in file if line.startswith("Max open files"))
    assert line.split()[3:5] == ["0", "0"]
    assert os.readlink(f"/proc/{child}/cwd") == "/"
    assert os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert ran(bounded, "SELECT repeat('x', 1000) FROM range(500)").rows == 500
    for statement in ("SELECT repeat('x', 1000000) FROM range(1000)", "SELECT repeat('x', 100) FROM range(20000)"):
        with pytest.raises(BadInput, match=r"more than 1 MiB. Select fewer columns|memory"):
            ran(bounded, statement)
    assert ran(bounded, "SELECT 1 AS one").records() == [{"one": 1}]


ASKING = """
import sys, threading, time
import numpy as np
from dualform.query.sql.process import Sql
from dualform.query.view import View
from tests.query import arrays

memory = arrays.memory({"fc": np.ones((4, 2), np.float32)}, {"label": [1, 2, 3, 4]})
sql = Sql(View(memory, arrays.engine(memory)._view.backend, 1 << 20))
sql.run("SELECT 1", lambda: None)
print(sql._child.pid, flush=True)
sql.run("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3", lambda: None)
"""


def test_the_child_ends_with_the_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", ASKING], stdout=subprocess.PIPE, text=True) as asking:
        child = int(asking.stdout.readline())
        time.sleep(0.5)  # so that the long statement has begun
        asking.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{child}"):
        assert time.monotonic() < end
        time.sleep(0.05)


REACHING = [
    "SELECT * FROM read_csv('{home}/secret.csv')",
    "SELECT * FROM read_text('{home}/secret.csv')",
    "SELECT * FROM read_blob('{home}/*')",
    "SELECT * FROM '{home}/secret.csv'",
    "SELECT * FROM glob('{home}/*')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')",
    "SELECT * FROM read_json('/proc/self/environ')",
    "SELECT * FROM sniff_csv('{home}/secret.csv')",
    "SELECT * FROM parquet_metadata('{home}/secret.csv')",
    "SELECT getenv('DUALFORM_SECRET')",
    "SELECT current_setting('home_directory')",
    "SELECT current_setting('secret_directory')",
    "SELECT current_setting('extension_directory')",
    "SELECT current_setting('temp_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "COPY slots TO '{home}/out.csv'",
    "COPY (SELECT 1) TO '/tmp/dualform-sql-out'",
    "ATTACH '{home}/other.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET memory_limit = '100GB'",
    "RESET ALL",
    "PRAGMA database_list",
    "PRAGMA version",
    "CALL pragma_version()",
    "CREATE TABLE x AS SELECT * FROM read_text('{home}/secret.csv')",
    "CREATE SECRET x (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE MACRO x() AS 1",
    "EXPORT DATABASE '{home}/out'",
    "IMPORT DATABASE '{home}/out'",
    "DROP TABLE steps",
    "UPDATE steps SET step = 0",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{home}/secret.csv')",
    "SELECT 1; SELECT * FROM read_text('{home}/secret.csv')",
    "SELECT query('SELECT 1')",
    "SELECT * FROM query('SELECT content FROM read_text(''{home}/secret.csv'')')",
    "SELECT * FROM query_table('{home}/secret.csv')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{home}/secret.csv'')'))",
    "SELECT * FROM python_map_function()",
    "SELECT write_log('x')",
]
HARMFUL = [
    "read_text",
    "read_csv",
    "glob",
    "getenv",
    "current_setting",
    "getvariable",
    "repeat",
    "range",
    "md5",
    "query",
]
LASTING = [
    "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3",
    "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x) SELECT max(n) FROM x",
    "SELECT max(range) FROM generate_series(1, 1000000000000) t(range)",
    "SELECT regexp_matches(repeat('a', 100000), '(a*)*(a*)*(a*)*b') FROM range(100000)",
    "SELECT sum(length(repeat('x', range))) FROM range(10000000)",
    "SELECT list_sort(list(range)) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
    "SELECT repeat(repeat(repeat('x', 10000), 10000), 10000)",
    "SELECT factorial(20) FROM range(100000000000) ORDER BY random()",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    "SELECT " + " + ".join(["1"] * 20000),
    "SELECT * FROM slots a, slots b, slots c, slots d, slots e, slots f, slots g, slots h, slots i, slots j, slots k",
]


def own(bounded: Sql, home: str) -> list[str]:
    """Every setting that DuckDB has, and every function that makes a table, asked for a file."""
    settings = [row["name"] for row in ran(bounded, "SELECT name FROM duckdb_settings() ORDER BY name").records()]
    makers = (
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE function_type LIKE 'table%' ORDER BY 1"
    )
    tables = [row["name"] for row in ran(bounded, makers).records()]
    given = (f"'{home}/secret.csv'", f"['{home}/secret.csv']", f"'{home}/*'", "")
    asked = [f'SELECT * FROM "{name}"({argument})' for name in tables for argument in given]
    return [f"SELECT current_setting('{name}')" for name in settings] + asked


def drawn(rng: random.Random, home: str, names: list[str]) -> str:
    """Functions and tables that DuckDB has, with arguments that mean no good."""
    arguments = [
        f"'{home}/secret.csv'",
        "'/etc/passwd'",
        "'DUALFORM_SECRET'",
        "'home_directory'",
        "1e9",
        "NULL",
        "slot",
    ]
    call = f"{rng.choice(names)}({', '.join(rng.choices(arguments, k=rng.randrange(4)))})"
    for _ in range(rng.randrange(3)):
        call = f"{rng.choice(names)}({call})"
    shape = rng.choice(
        ["SELECT {} FROM slots", "SELECT * FROM {}", "SELECT {}", "SELECT slot FROM slots WHERE {} IS NOT NULL"]
    )
    return shape.format(call)


@pytest.mark.soak
def test_no_statement_reaches_outside_or_outlives_its_limits(bounded, tmp_path):
    bounded._seconds = SECONDS
    rng, home, outcomes = random.Random(SEED), str(tmp_path), {"answered": 0, "refused": 0, "stopped": 0}
    homes = {home, os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_dir, os.getcwd()} - {"/"}
    every = (
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE regexp_matches(function_name, '^[a-z]')"
    )
    names = sorted(row["name"] for row in ran(bounded, every).records())
    lasting = LASTING[: rounds(2, len(LASTING))]
    statements = [one.replace("{home}", home) for one in REACHING] + lasting
    theirs = own(bounded, home)
    statements += theirs if soaking() else rng.sample(theirs, 40)
    statements += [drawn(rng, home, rng.choice((HARMFUL, names))) for _ in range(rounds(25, 400))]
    for statement in statements:
        began = time.monotonic()
        try:
            said, outcome = repr(ran(bounded, statement).records()), "answered"
        except BadInput as error:
            said, outcome = str(error), "refused"
        except TimedOut as error:
            said, outcome = str(error), "stopped"
        outcomes[outcome] += 1
        assert SECRET not in said, statement
        assert all(place not in said or place in statement for place in homes), statement
        assert sys.prefix not in said, statement
        assert time.monotonic() - began < SECONDS + 60, statement
        assert not any(path.name != "secret.csv" for path in tmp_path.iterdir()), statement
    assert ran(bounded, "SELECT count(*) AS n FROM slots").records() == [{"n": 4}]
    assert outcomes["refused"] > len(REACHING) / 2
    report(
        "statements of SQL that reach for files, settings, the environment and the network, or take for ever",
        seed=SEED,
        count=len(statements),
        outcome=", ".join(f"{count} {what}" for what, count in outcomes.items()) + "; no secret, no path, no file",
    )


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture(scope="module")
def four():
    return arrays.memory({"fc": np.ones((4, 2), np.float32)}, {"label": [1, 2, 3, 4]})


@pytest.fixture
def own_engine(four):
    with arrays.engine(four) as own_engine:
        yield own_engine


def made_of(four):
    made = Sql(View(four, arrays.engine(four)._view.backend, 1 << 20))
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
        "'infinity'::DATE",
        "'-infinity'::TIMESTAMP",
        "TIMESTAMP '-290000-01-01'",
        "TIME '24:00:00'",
        "TIMETZ '10:00:00+02'",
        "[TIMETZ '10:00:00+02']",
        "[TIME '24:00:00']",
        "{'a': TIME '24:00:00'}",
        "md5_number('b')",
        "[md5_number('b')]",
        "'0101'::BIT",
        "12345678901234567890123::BIGNUM",
        "42::VARIANT",
        "[42::VARIANT]",
        "18446744073709551615::UBIGINT",
        "sum(9223372036854775807) OVER ()",
        "123456789012345678901234567.8901234567::DECIMAL(38, 10)",
        "1234567890123456.7::DECIMAL(38, 1)",
        "12345678901234567890::DECIMAL(38, 0)",
        "TIME_NS '10:00:00.123456789'",
    ],
)
def test_a_value_that_python_has_no_form_of_is_refused_by_column_and_the_child_goes_on(going_on, value):
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
    assert child.poll() is None


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
    with dualform.open(tmp_path) as four:
        assert four.sql("SELECT name FROM Labels ORDER BY label").records() == [{"name": "cat"}, {"name": "dog"}]
        assert four.sql('SELECT count(*) AS n FROM "labels"').records() == [{"n": 2}]
        assert given == [{"labels"}]
        assert four.sql("SELECT count(*) AS n FROM labels, slots").records() == [{"n": 8}]
        assert four.sql("SELECT count(*) AS n FROM labels").records() == [{"n": 2}]
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


def test_a_refresh_does_not_wait_for_a_statement_whose_child_ends_with_it(own_engine):
    own_engine.sql("SELECT 1")
    before, over, refused = own_engine._sql, threading.Event(), []

    def ask() -> None:
        try:
            own_engine.ask(SqlStatement(ENDLESS), over.is_set)
        except Cancelled as error:
            refused.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(before._lock.locked)
    moved = patch.object(type(own_engine._view.snapshot), "moved", lambda self: True)
    try:
        with moved, patch("dualform.query.engine.opened_again", lambda seen, segments: seen):
            refreshing = threading.Thread(target=own_engine.refresh)
            refreshing.start()
            refreshing.join(10)
            assert not refreshing.is_alive()
        assert asking.is_alive()
        assert own_engine.sql("SELECT 1 AS one").records() == [{"one": 1}]
    finally:
        over.set()
        asking.join()
        refreshing.join()
    assert len(refused) == 1
    assert before._child is None


def test_whoever_waits_for_a_child_that_does_not_read_stops_when_it_has_to(sql):
    run(sql, "SELECT 1")
    os.kill(sql._child.pid, signal.SIGSTOP)
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
            os.kill(sql._child.pid, signal.SIGCONT)
        asking.join()
    assert run(sql, "SELECT 1 AS one").records() == [{"one": 1}]


FORKING = """
import os, sys
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
            sys.exit(0)
        os.waitpid(forked[-1], 0)

sys.setprofile(behind)
found = sql.run("SELECT 2 AS two", lambda: None).records()
sys.setprofile(None)
print(found, len(forked) > 0, flush=True)
sql.close()
"""


def test_a_fork_in_the_midst_of_a_message_sends_no_part_of_it_again():
    forking = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60)
    assert forking.stdout.strip() == "[{'two': 2}] True", forking.stderr


def test_a_child_counts_as_the_processs_own_is_replaced_if_it_was_killed_and_ends_if_it_is_retired(sql):
    without = resident_bytes()
    assert run(sql, "SELECT count(*) AS n FROM slots")["n"] == [4]
    child = sql._child
    with open(f"/proc/{child.pid}/status") as file:
        held = 1024 * int(next(line for line in file if line.startswith("VmRSS")).split()[1])
    assert held > 20 << 20
    assert resident_bytes() > without + held // 2
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert run(sql, "SELECT count(*) AS n FROM slots")["n"] == [4]
    assert sql._child is not child
    child = sql._child.pid
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
