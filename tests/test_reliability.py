"""Rows that tests report, and the page that is made of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reliability import LONG, OF_FILE, page, report, rounds

REPORTS = re.compile(r"from tests\.reliability import .*\breport\b")


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setenv(LONG, "1")


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
    file, made = tmp_path / "rows.json", tmp_path / "reliability.md"
    for test, done, count in (
        ("service/test_process.py::test_a", "a question was asked", 9),
        ("record/test_kills.py::test_b[large]", "killed", 7),
        ("record/test_kills.py::test_b[large]", "killed", 1000),
        ("record/test_power_cut.py::test_c", "cut", 5),
    ):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"tests/{test} (call)")
        report(done, seed=3, count=count, outcome="held", to=file)
    assert rounds(3, 1000) == 1000
    for _ in range(2):  # once more, of a page that is there
        subprocess.run(
            [sys.executable, "-m", "tests.reliability", file, made], check=True, cwd=Path(__file__).parent.parent
        )
    text = made.read_text(encoding="utf-8")
    assert text.startswith("# Reliability\n")
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == [["| `kill -9` while recording; power cuts (simulated)", "1,005"], ["| SIGTERM under load", "9"]]


def test_rows_of_short_forms_make_no_page(tmp_path, monkeypatch):
    monkeypatch.delenv(LONG, raising=False)
    assert rounds(3, 1000) == 3
    file = tmp_path / "rows.json"
    report("little", seed=1, count=2, outcome="held", to=file)
    with pytest.raises(ValueError, match="test_rows_of_short_forms_make_no_page"):
        page(file.read_text(encoding="utf-8").splitlines())


def test_every_file_that_reports_has_its_line():
    here = Path(__file__).parent
    reporting = {
        file.relative_to(here.parent).as_posix()
        for file in here.rglob("test_*.py")
        if REPORTS.search(file.read_text(encoding="utf-8")) and file != Path(__file__)
    }
    assert OF_FILE.keys() == reporting
