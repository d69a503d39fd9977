"""Blocks of segments are written ahead of the commit, so that little waits in memory however much is recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform.store.batch import Batch, Extent, LayerRows
from dualform.store.files import durable_files
from dualform.store.files.durable_files import BLOCK_BYTES
from dualform.store.layer import Layer, affine
from dualform.store.maintenance.check import check_memory
from dualform.store.manifest import Manifest
from dualform.store.reading.snapshot import Snapshot
from dualform.store.writing import writer as store
from tests.store.small_memory import batches_of, open_writer

WIDTH, ROWS, STEPS = 4096, 100, 12
WIDE = (Layer("wide", "sample", WIDTH, 2, affine(WIDTH, "wide.weight", None)),)
STEP_BYTES = ROWS * WIDTH * 4


def wide_batch(step: int) -> Batch:
    rng = np.random.default_rng(step)
    said = {
        "dataset": np.array([None] * ROWS, dtype=object),
        "label": rng.integers(0, 9, ROWS),
        "sample": np.arange(ROWS),
    }
    rows = LayerRows(0, rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.normal(size=(ROWS, 2)).astype("f4"))
    return Batch(step, said, [Extent("sample", 0, ROWS, None)], {"wide": [rows]})


@pytest.fixture
def blocks_made(monkeypatch):
    """How many blocks of memory were asked of the system."""
    made, anonymous = [0], durable_files.mmap.mmap

    def counted(*args, **options):
        made[0] += 1
        return anonymous(*args, **options)

    monkeypatch.setattr(durable_files.mmap, "mmap", counted)
    return made


def files_of(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "shard-00000" / "layers" / "wide").iterdir())


# What a frame of the journal has may be written, and so may what is too much for one.
@pytest.mark.parametrize(("seconds", "frame"), [(60.0, 2 * STEP_BYTES), (0.0, 9 * STEP_BYTES)])
def test_little_waits_in_memory(tmp_path, monkeypatch, blocks_made, seconds, frame):
    monkeypatch.setattr(store, "FRAME_BYTES", frame)
    monkeypatch.setattr(store, "WRITTEN_AT_ONCE", STEP_BYTES)
    writer = open_writer(tmp_path / "memory", WIDE, journal_seconds=seconds)
    for step in range(STEPS):
        writer.append(wide_batch(step))
    assert Manifest.read(tmp_path / "memory").shards[0].commits == 0
    assert not [name for name in files_of(tmp_path / "memory") if not name.endswith(".tmp")]
    writer.close()
    assert blocks_made[0] <= 4 * STEP_BYTES // BLOCK_BYTES < STEPS * STEP_BYTES // BLOCK_BYTES
    assert files_of(tmp_path / "memory") == ["keys-000000.faiss", "values-000000.npy"]
    whole = np.concatenate([wide_batch(step).layers["wide"][0].keys for step in range(STEPS)])
    keys = Snapshot.open(tmp_path / "memory").keys("wide")
    assert keys.entry_block(0, keys.entries).tobytes() == whole.tobytes()
    assert check_memory(tmp_path / "memory") == []


def test_a_frame_has_what_was_not_written_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "WRITTEN_AT_ONCE", STEP_BYTES)
    writer = open_writer(tmp_path / "memory", WIDE, journal_seconds=0.0)
    for step in range(STEPS):
        writer.append(wide_batch(step))
        whole = np.concatenate([wide_batch(before).layers["wide"][0].keys for before in range(step + 1)])
        keys = Snapshot.open(tmp_path / "memory").keys("wide")
        assert keys.entry_block(0, keys.entries).tobytes() == whole.tobytes()
    writer.abandon()
    assert files_of(tmp_path / "memory") == []
    keys = Snapshot.open(tmp_path / "memory").keys("wide")
    assert keys.entry_block(0, keys.entries).tobytes() == whole.tobytes()


def test_a_full_disk_is_told_of_ahead_of_the_commit(tmp_path, monkeypatch):
    def full(handle, parts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "WRITTEN_AT_ONCE", 2 * STEP_BYTES)
    monkeypatch.setattr(store, "FRAME_BYTES", 2 * STEP_BYTES)
    writer = open_writer(tmp_path / "memory", WIDE, journal_seconds=60.0)
    monkeypatch.setattr(durable_files, "write_some", full)
    writer.append(wide_batch(0))
    with pytest.raises(OSError, match="No space left"):
        writer.append(wide_batch(1))
    writer.abandon()
    assert files_of(tmp_path / "memory") == []


def test_rows_of_tables_wait_for_no_segment_to_fill(tmp_path, monkeypatch):
    """A training of few numbers a step makes more bytes of tables than of segments."""
    monkeypatch.setattr(store, "TABLE_BYTES", 20_000)
    writer = open_writer(tmp_path / "memory", journal_seconds=0.0)
    waiting, manifests = [], []
    for one in batches_of([3] * 240):
        writer.append(one)
        waiting.append(sum(table.nbytes for tables in writer._journaled for table in tables.values()))
        manifests.append((tmp_path / "memory" / "memory.json").stat().st_size)
    assert Manifest.read(tmp_path / "memory").shards[0].commits > 3
    assert max(waiting) < 25_000
    assert manifests[-1] < 1.1 * manifests[120]
    assert max(waiting[120:]) <= 1.1 * max(waiting[:120])
    writer.close()
    assert check_memory(tmp_path / "memory") == []
