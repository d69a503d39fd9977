"""Each process writes a shard of its own, and memory.json is the first one's."""

from __future__ import annotations

import os
import subprocess
import sys

import duckdb
import numpy as np
import pytest

from dualform.errors import AlreadyExists, NotAMemory
from dualform.store.batch import Ending
from dualform.store.manifest import SHARD_FILE, Manifest
from tests.store.small_memory import TOKENS, expected, open_writer, token_batch


def test_shards_are_written_side_by_side(tmp_path):
    path = tmp_path / "memory"
    writers = [open_writer(path, layers=TOKENS, shard_number=number, shards=2) for number in range(2)]
    batches = [[token_batch(np.random.default_rng(number), step, 3) for step in range(4)] for number in range(2)]
    for step in range(4):
        for number, writer in enumerate(writers):
            writer.append(batches[number][step])
            if step == number:
                writer.commit()
    writers[1].close()
    writers[0].close(Ending(final={"every.weight": np.ones((2, 4), np.float32)}))
    first, second = Manifest.read(path), Manifest.read(path / "shard-00001", SHARD_FILE)
    assert [part.folder for part in first.shards] == ["shard-00000", "shard-00001"]
    assert not first.shards[1].tables
    assert [part.folder for part in second.shards] == ["shard-00001"]
    assert (first.recording, second.recording) == (False, False)
    assert first.tables() == second.tables()
    assert set(first.files) == {"weights/initial.safetensors", "weights/final.safetensors"}
    assert not second.files
    for number, manifest in enumerate((first, second)):
        with duckdb.connect(path / manifest.shards[0].folder / "slots.duckdb", read_only=True) as tables:
            found = tables.sql("SELECT * FROM slots ORDER BY slot").to_arrow_table().to_pydict()
        assert found == expected(batches[number], TOKENS).tokens


def test_a_shard_without_its_memory_is_refused(tmp_path):
    with pytest.raises(NotAMemory, match="no folder"):
        open_writer(tmp_path / "memory", shard_number=1)
    open_writer(tmp_path / "memory", shards=2).abandon()
    with pytest.raises(NotAMemory, match="was not created for shard-00002"):
        open_writer(tmp_path / "memory", shard_number=2)
    open_writer(tmp_path / "memory", shard_number=1).abandon()
    with pytest.raises(AlreadyExists, match="shard-00001 already exists"):
        open_writer(tmp_path / "memory", shard_number=1)


_IN_A_NOTEBOOK = """
import sys
from pathlib import Path
from dualform.store import shard

appender, asked = shard.Appender(Path(sys.argv[1])), "SELECT current_setting('enable_progress_bar')"
appender.create({}, [])
with appender._held() as connection:
    print(connection.execute(asked).fetchall())
with shard.opened(Path(sys.argv[1])) as connection:
    print(connection.execute(asked).fetchall())
"""


def test_no_progress_bar_is_drawn_into_a_notebook(tmp_path):
    """DuckDB draws one where no file of the program was written, and a commit takes two seconds."""
    command = [sys.executable, "-c", _IN_A_NOTEBOOK, str(tmp_path / "slots.duckdb")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    assert said == "[(False,)]\n" * 2
