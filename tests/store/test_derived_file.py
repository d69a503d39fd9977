"""Files of what is derived: what a process leaves behind that was killed while it wrote one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from dualform.record.setup.budget import disk_use
from dualform.store.files import durable_files
from dualform.store.files.durable_files import ABANDONED_SECONDS, CODES, SUM, DerivedFile, write_derived

NUMBERS = np.arange(100.0)


def write(path: Path) -> None:
    write_derived(path, "numbers 1", "their origin", [(NUMBERS,)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A layer's folder, with files that a killed process was writing."""
    for name in (f"keys-000000.faiss{CODES}.tmp", f"0123{SUM}.tmp", "keys-000001.faiss.tmp", "notes.tmp"):
        age(written(tmp_path / name), 2 * ABANDONED_SECONDS)
    return tmp_path


def written(path: Path) -> Path:
    path.write_bytes(b"a part")
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_whoever_writes_next_removes_what_nobody_writes_any_more(folder):
    write(folder / f"4567{SUM}")
    # What is a segment's or somebody else's stays.
    assert sorted(path.name for path in folder.iterdir()) == [f"4567{SUM}", "keys-000001.faiss.tmp", "notes.tmp"]


def test_what_another_process_may_be_writing_stays(folder):
    age(folder / f"0123{SUM}.tmp", ABANDONED_SECONDS / 2)
    write(folder / f"4567{SUM}")
    assert (folder / f"0123{SUM}.tmp").exists()


def test_a_writer_whose_file_was_removed_meanwhile_leaves_no_part_of_one(tmp_path, monkeypatch):
    path, replace = tmp_path / f"0123{SUM}", os.replace

    def removed_before(temporary, target):
        temporary.unlink()
        replace(temporary, target)

    monkeypatch.setattr(durable_files.os, "replace", removed_before)
    write(path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write(path)
    file = DerivedFile.open(path, "numbers 1", "their origin")
    assert np.array_equal(file.read(0).view(np.float64), NUMBERS)


def test_a_folder_that_cannot_be_listed_is_written_to_nevertheless(tmp_path, monkeypatch):
    def denied(folder):
        raise PermissionError("denied")

    monkeypatch.setattr(durable_files.os, "scandir", denied)
    write(tmp_path / f"0123{SUM}")
    assert DerivedFile.open(tmp_path / f"0123{SUM}", "numbers 1", "their origin") is not None


def test_derived_files_finished_or_not_are_left_out_of_what_a_memory_takes(tmp_path):
    layer = tmp_path / "m" / "shard-00000" / "layers" / "0"
    layer.mkdir(parents=True)
    written(layer / "keys-000000.faiss")
    before, own = disk_use(tmp_path / "m"), disk_use(tmp_path / "m", "shard-00000")
    for name in (f"keys-000000.faiss{CODES}", f"0123{SUM}", f"0123{SUM}.tmp", f"keys-000000.faiss{CODES}.tmp"):
        layer.joinpath(name).write_bytes(bytes(100_000))
    assert disk_use(tmp_path / "m") == before
    assert disk_use(tmp_path / "m", "shard-00000") == own
    layer.joinpath("keys-000001.faiss").write_bytes(bytes(100_000))
    assert disk_use(tmp_path / "m") >= before + 100_000
