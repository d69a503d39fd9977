"""The profile of a first answer names every part of it, in the order in which they end."""

from __future__ import annotations

import sys

import pytest
from benchmarks.cold_profile import main
from click.testing import CliRunner

from tests.contract.recorded import record

PARTS = [
    "Python has started",
    "the command line is loaded",
    "libraries are loaded",
    "the memory is open",
    "keys, mask and query are found",
    "codes are screened",
    "candidates are scored",
    "hits are made",
    "the hits' columns are read",
    "the answer is written",
]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process had its disk read")
def test_parts_of_a_first_answer_end_one_after_the_other(tmp_path):
    asked = [str(record(tmp_path / "run")), "2", "test/1", "--dropped", "--repeats", "1"]
    lines = CliRunner().invoke(main, asked, catch_exceptions=False).output.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:] if line]
    assert [row[0] for row in rows if row[0] != "reading ahead is done"] == PARTS
    assert "reading ahead is done" in [row[0] for row in rows]
    for number in (1, 2, 3):
        told = [int(row[number].replace(",", "")) for row in rows]
        assert told == sorted(told)
