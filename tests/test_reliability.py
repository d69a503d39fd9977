"""Rows that tests report, and the page that is made of them."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reliability import HEADINGS, LONG, page, report, rounds


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setenv(LONG, "1")


def test_forms(monkeypatch):
    monkeypatch.delenv(LONG, raising=False)
    assert rounds(3, 1000) == 3
    monkeypatch.setenv(LONG, "1")
    assert rounds(3, 1000) == 1000


def test_rows_of_many_at_once_are_all_there(tmp_path, long):
    file = tmp_path / "build" / "rows.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: report(f"was done {n}", seed=n, count=n, outcome="held " * 40, to=file), range(64)))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["seed"] for row in rows) == list(range(64))
    assert {row["name"] for row in rows} == {
        f"tests/test_reliability.py::{test_rows_of_many_at_once_are_all_there.__name__}"
    }


def test_page(tmp_path, long, monkeypatch):
    file = tmp_path / "rows.json"
    report("bits were | flipped", seed=3, count=7, outcome="refused twice", to=file)
    report("bits were | flipped", seed=3, count=1000, outcome="refused", to=file)
    report("a file was cut short", seed=4, count=12, outcome="refused", to=file)
    sigterm = "tests/service/test_sigterm_under_load.py::test_page"
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{sigterm} (call)")
    report("a question was asked", seed=5, count=9, outcome="answered", to=file)
    made = tmp_path / "reliability.md"
    subprocess.run(
        [sys.executable, "-m", "tests.reliability", file, made], check=True, cwd=Path(__file__).parent.parent
    )
    text = made.read_text(encoding="utf-8")
    assert "Made with `make soak`" in text
    lines = [line for line in text.splitlines() if line.startswith(("## ", "| "))]
    assert lines == [
        "## SIGTERM under load",
        "| what was tried | count | seed | outcome | test |",
        "| --- | --- | --- | --- | --- |",
        f"| a question was asked | 9 | 5 | answered | `{sigterm}` |",
        "## All else",
        "| what was tried | count | seed | outcome | test |",
        "| --- | --- | --- | --- | --- |",
        "| a file was cut short | 12 | 4 | refused | `tests/test_reliability.py::test_page` |",
        "| bits were \\| flipped | 1,000 | 3 | refused | `tests/test_reliability.py::test_page` |",
    ]


def test_rows_of_short_forms_make_no_page(tmp_path, monkeypatch):
    monkeypatch.delenv(LONG, raising=False)
    file = tmp_path / "rows.json"
    report("little", seed=1, count=2, outcome="held", to=file)
    with pytest.raises(ValueError, match="test_rows_of_short_forms_make_no_page"):
        page(file.read_text(encoding="utf-8").splitlines())


def test_every_file_that_reports_has_its_heading():
    here = Path(__file__).parent
    reporting = {
        file.relative_to(here.parent).as_posix()
        for file in here.rglob("test_*.py")
        if "@pytest.mark.soak" in file.read_text(encoding="utf-8") and file != Path(__file__)
    }
    assert HEADINGS.keys() == reporting
