"""Free SQL reads the snapshot's tables and reaches nothing else; the process that runs it, and its bounds."""

from __future__ import annotations

import os
import pwd
import random
import sys
import time

import numpy as np
import pytest

from dualform.errors import BadInput, BadMask, Cancelled, TimedOut
from dualform.query.sql.process import Sql
from dualform.query.view import View
from dualform.questions import SqlStatement
from tests.query import arrays
from tests.reliability import report, rounds, soaking


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
    sql = Sql(View(memory, arrays.engine(memory)._view.backend, 1 << 20), seconds=0.5)
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"
    try:
        with pytest.raises(TimedOut, match=r"longer than 0\.5 seconds"):
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
SECONDS = 0.5


@pytest.fixture
def limited(memory, monkeypatch, tmp_path):
    monkeypatch.setenv("DUALFORM_SECRET", SECRET)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secret.csv").write_text(f"{SECRET}\n")
    view = View(memory, arrays.engine(memory)._view.backend, 1 << 20)
    made = Sql(view, memory=256 << 20, most_bytes=1 << 20)
    yield made
    made.close()


def ran(limited: Sql, statement: str):
    return limited.run(statement, lambda: None)


def test_the_child_has_no_environment_stands_back_opens_nothing_and_answers_so_many_bytes_at_most(limited):
    ran(limited, "SELECT 1")
    child = limited._child.process.pid
    with open(f"/proc/{child}/environ", "rb") as file:
        assert [one for one in file.read().split(b"\0") if one and not one.startswith(b"LD_LIBRARY_PATH=")] == []
    with open(f"/proc/{child}/limits") as file:
        line = next(line for line in file if line.startswith("Max open files"))
    assert line.split()[3:5] == ["0", "0"]
    assert os.readlink(f"/proc/{child}/cwd") == "/"
    assert os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert ran(limited, "SELECT repeat('x', 1000) FROM range(500)").rows == 500
    for statement in ("SELECT repeat('x', 1000000) FROM range(1000)", "SELECT repeat('x', 100) FROM range(20000)"):
        with pytest.raises(BadInput, match=r"more than 1 MiB. Select fewer columns|memory"):
            ran(limited, statement)
    assert ran(limited, "SELECT 1 AS one").records() == [{"one": 1}]


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


def own(limited: Sql, home: str) -> list[str]:
    """Every setting that DuckDB has, and every function that makes a table, asked for a file."""
    settings = [row["name"] for row in ran(limited, "SELECT name FROM duckdb_settings() ORDER BY name").records()]
    makers = (
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE function_type LIKE 'table%' ORDER BY 1"
    )
    tables = [row["name"] for row in ran(limited, makers).records()]
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
def test_no_statement_reaches_outside_or_outlives_its_limits(limited, tmp_path):
    limited._seconds = SECONDS
    rng, home, outcomes = random.Random(SEED), str(tmp_path), {"answered": 0, "refused": 0, "stopped": 0}
    homes = {home, os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_dir, os.getcwd()} - {"/"}
    every = (
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE regexp_matches(function_name, '^[a-z]')"
    )
    names = sorted(row["name"] for row in ran(limited, every).records())
    lasting = LASTING[: rounds(2, len(LASTING))]
    statements = [one.replace("{home}", home) for one in REACHING] + lasting
    theirs = own(limited, home)
    statements += theirs if soaking() else rng.sample(theirs, 30)
    statements += [drawn(rng, home, rng.choice((HARMFUL, names))) for _ in range(rounds(20, 400))]
    for statement in statements:
        began = time.monotonic()
        try:
            said, outcome = repr(ran(limited, statement).records()), "answered"
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
    assert ran(limited, "SELECT count(*) AS n FROM slots").records() == [{"n": 4}]
    assert outcomes["refused"] > len(REACHING) / 2
    report(
        "statements of SQL that reach for files, settings, the environment and the network, or take for ever",
        seed=SEED,
        count=len(statements),
        outcome=", ".join(f"{count} {what}" for what, count in outcomes.items()) + "; no secret, no path, no file",
    )
