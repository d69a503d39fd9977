"""Systems without fcntl, resource, sysconf and writev, as Windows: files are written, and limits are fewer."""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

from dualform.query.sql import worker
from dualform.store import locks
from dualform.store.files import durable_files, ram_budget


def without(monkeypatch, module, missing):
    """A module as it is loaded where another one cannot be imported."""
    monkeypatch.setitem(sys.modules, missing, None)
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_elsewhere", module.__file__)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def narrow(monkeypatch):
    for name in ("writev", "sysconf", "O_CLOEXEC", "O_TMPFILE"):
        monkeypatch.delattr(os, name)


def test_files_are_written_through_the_page_cache(monkeypatch, narrow, tmp_path):
    own, blocks = (
        without(monkeypatch, durable_files, "fcntl"),
        [mmap.mmap(-1, durable_files.BLOCK_BYTES) for _ in range(2)],
    )
    for number, block in enumerate(blocks):
        block[:] = bytes([number + 1]) * len(block)
    file = own.DirectFile(tmp_path / "file")
    file.write(blocks, 0, durable_files.BLOCK_BYTES + 5)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    file.finish(durable_files.BLOCK_BYTES + 5)
    assert (tmp_path / "file").read_bytes() == b"\1" * durable_files.BLOCK_BYTES + b"\2" * 5
    assert own._DIRECT == 0


def test_a_folder_that_cannot_be_locked_is_said_to_be_open_to_others(monkeypatch, tmp_path):
    own = without(monkeypatch, locks, "fcntl")
    monkeypatch.setattr(own, "Manifest", SimpleNamespace(read=lambda folder: None))
    with own.folder_lock(tmp_path / "run", wait=True):
        pass
    with (
        pytest.warns(RuntimeWarning, match=r"^This system cannot lock .*\. Do not delete samples of it"),
        own.folder_lock(tmp_path / "run"),
    ):
        pass


def test_a_journal_is_written_piece_by_piece(narrow, tmp_path):
    with open(tmp_path / "file", "wb") as file:
        assert durable_files.write_some(file.fileno(), [memoryview(b"one"), memoryview(b"two")]) == 3
    assert (tmp_path / "file").read_bytes() == b"one"


def test_memory_that_the_system_does_not_tell_is_a_guess(narrow):
    assert 0 < ram_budget.memory_bytes() <= 8 << 30


def test_sql_is_answered_without_limits_of_the_system(monkeypatch):
    own = without(monkeypatch, worker, "resource")
    connection = duckdb.connect(":memory:")
    own._lock(connection, 1 << 30)
    answered = own.answer(connection, "SELECT 7 AS a", 10, 1 << 20, 1.0)
    assert pa.ipc.open_stream(answered).read_all().to_pylist() == [{"a": 7}]
    assert sys.meta_path  # this process goes on loading modules


def test_folders_are_not_synced_on_windows(monkeypatch, tmp_path):
    missing = tmp_path / "there is none"
    with monkeypatch.context() as patch:
        patch.setattr(durable_files.os, "name", "nt")
        durable_files.sync_folder(missing)
    with pytest.raises(FileNotFoundError):
        durable_files.sync_folder(missing)
