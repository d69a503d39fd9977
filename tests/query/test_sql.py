"""Free SQL reads the snapshot's tables and reaches nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dualform.errors import BadInput, BadMask, Cancelled, TimedOut
from dualform.query.sql.process import Sql
from dualform.query.view import View
from dualform.questions import SqlStatement
from tests.query import arrays


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
