"""What is written is what is read: by dualform, by plain FAISS, by plain DuckDB and by plain NumPy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import AlreadyExists, BadInput, NotAMemory, NotFound
from dualform.store.files.segment import SegmentCache
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import batch, open_writer, write


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    commit_every=st.integers(1, 4),
)
def test_reads_back_every_bit_whatever_the_batches_and_commits(sizes, seed, commit_every):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        expected = write(path, sizes, seed, commit_every)
        memory = Snapshot.open(path)
        assert memory.count("sample") == sum(sizes)
        assert memory.steps == len(sizes)
        for layer in memory.layers:
            keys = memory.keys(layer)
            assert bits(keys.entry_block(0, keys.entries)) == bits(expected.keys[layer])
            assert bits(memory.values(layer).block(0, sum(sizes))) == bits(expected.values[layer])
        for name, column in expected.columns.items():
            assert memory.column("sample", name).tolist() == column
        assert check_memory(path) == []


def test_repeated_keys_are_stored_once_bit_for_bit(tmp_path):
    expected = write(tmp_path / "memory", [40, 40])
    keys = Snapshot.open(tmp_path / "memory").keys("layer-0")
    distinct = {row.tobytes() for row in expected.keys["layer-0"]}
    # The inputs hold a row of 0.0 and one of -0.0: equal as numbers, different as bits.
    assert keys.rows == len(distinct) == 12
    assert keys.row_of_entry is not None
    assert Snapshot.open(tmp_path / "memory").keys("layer-1").row_of_entry is None


def test_blocks_and_rows_do_not_depend_on_segments_or_cache(tmp_path):
    expected = write(tmp_path / "memory", [7, 3, 6, 5, 4], commit_every=1).keys["layer-1"]
    for cache in (SegmentCache(), SegmentCache(most_bytes=0), SegmentCache(most_bytes=200)):
        keys = Snapshot.open(tmp_path / "memory", cache).keys("layer-1")
        for size in (1, 4, 25, 100):
            blocks = list(keys.blocks(size))
            assert [start for start, _ in blocks] == list(range(0, 25, size))
            assert bits(np.concatenate([block for _, block in blocks])) == bits(expected)
        rows = np.array([24, 0, 7, 7, 9, 10])
        assert bits(keys.take(rows)) == bits(expected[rows])


def test_a_memory_is_readable_while_it_is_written(tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    writer = open_writer(tmp_path / "memory")
    assert Snapshot.open(tmp_path / "memory").count("sample") == 0
    for step in range(3):
        writer.append(batch(rng, step, 4, inputs))
        assert Snapshot.open(tmp_path / "memory").count("sample") == 4 * step
        writer.commit()
        memory = Snapshot.open(tmp_path / "memory")
        assert (memory.count("sample"), memory.commits, memory.recording) == (4 * step + 4, step + 1, True)
    writer.close()
    assert not Snapshot.open(tmp_path / "memory").recording


def test_commits_by_itself_once_enough_was_appended(tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    writer = open_writer(tmp_path / "memory", segment_bytes=1000)
    for step in range(12):
        writer.append(batch(rng, step, 4, inputs))
    assert Snapshot.open(tmp_path / "memory").commits > 1
    writer.close()
    assert Snapshot.open(tmp_path / "memory").count("sample") == 48


def test_refuses_a_folder_that_holds_something(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "precious.txt").write_text("x")
    with pytest.raises(AlreadyExists, match="already exists and is not an empty folder"):
        open_writer(tmp_path / "memory")
    assert (tmp_path / "memory" / "precious.txt").read_text() == "x"


def test_refuses_what_is_no_memory(tmp_path):
    with pytest.raises(NotAMemory, match="no folder"):
        Snapshot.open(tmp_path / "nowhere")
    with pytest.raises(NotAMemory, match=r"is not a dualform memory \(no memory\.json\)"):
        Snapshot.open(tmp_path)
    write(tmp_path / "memory", [2])
    manifest = tmp_path / "memory" / "memory.json"
    written = manifest.read_text()
    manifest.write_text(written.replace('"format": 2', '"format": 3'))
    with pytest.raises(NotAMemory, match=r"format 3, newer than the 2 .* Upgrade dualform"):
        Snapshot.open(tmp_path / "memory")
    manifest.write_text(written.replace('"format": 2', '"format": 1'))
    with pytest.raises(NotAMemory) as caught:
        Snapshot.open(tmp_path / "memory")
    assert str(caught.value) == (
        f"{tmp_path / 'memory'} is a memory of format 1, written by dualform 0.1, which this version does not read. "
        "Open it with dualform 0.1, or record the training again."
    )


def test_a_column_keeps_its_name_and_type(tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    writer = open_writer(tmp_path / "memory")
    writer.append(batch(rng, 0, 2, inputs))
    other = batch(rng, 1, 2, inputs)
    other.samples["weight"] = np.array([1, 2])
    with pytest.raises(BadInput, match="column 'weight' was DOUBLE at the first step and is BIGINT now"):
        writer.append(other)
    writer.abandon()
    assert not list((tmp_path / "memory").rglob("*.tmp"))


def test_names_what_does_not_exist(tmp_path):
    write(tmp_path / "memory", [2])
    memory = Snapshot.open(tmp_path / "memory")
    with pytest.raises(NotFound, match=r"no layer 'x'\. Layers: layer-0, layer-1"):
        memory.keys("x")
    with pytest.raises(NotFound, match=r"no layer 'norm': it was not recorded \(no tap for LayerNorm\)"):
        memory.keys("norm")
    with pytest.raises(NotFound, match=r"no query set 'x'\. Query sets: test"):
        memory.query_set("x")
