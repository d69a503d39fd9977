"""A training commits as often as it likes: DuckDB lets go of what the rows of a commit took."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dualform.store.files.ram_budget import anonymous_bytes

COMMITS = """
import sys
from pathlib import Path

import numpy as np

from dualform.store import shard
from dualform.store.files.ram_budget import anonymous_bytes
from dualform.store.tables import arrow_table

types = {f"c{number}": "DOUBLE" for number in range(40)}
path, generator = Path(sys.argv[1]), np.random.default_rng(0)
rows = {"numbers": arrow_table({name: generator.normal(size=20_000) for name in types}, types)}
appender = shard.Appender(path)
marks = appender.create({"numbers": types}, [])
for commit in range(6):
    marks = appender.append(commit, rows, marks)
held = anonymous_bytes()
appender.close()
print(rows["numbers"].nbytes, held - anonymous_bytes())
"""


@pytest.mark.skipif(not anonymous_bytes(), reason="the system does not say what a process holds")
def test_what_a_commit_took_is_let_go(tmp_path):
    """Six commits of six megabytes left ninety."""
    command = [sys.executable, "-c", COMMITS, str(tmp_path / "slots.duckdb")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    rows, held = map(int, said.split())
    assert held < rows
