"""What the writer puts on disk, in shards and ahead of the commit, read back by DuckDB, FAISS and NumPy alone."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import duckdb
import faiss
import numpy as np
import pytest
import xxhash
from hypothesis import Phase, example, given, settings, strategies as st

from dualform.errors import AlreadyExists, BadInput, NotAMemory
from dualform.store.batch import Batch, Extent, LayerRows, ParameterGroup, StepLog
from dualform.store.files import durable_files
from dualform.store.files.durable_files import BLOCK_BYTES
from dualform.store.layer import Layer, affine
from dualform.store.maintenance.check import check_memory
from dualform.store.manifest import Manifest
from dualform.store.reading.snapshot import Snapshot
from dualform.store.tables import quoted, running_digest
from dualform.store.writing import rows_writer, writer as store
from dualform.store.writing.rows_writer import DistinctKeys
from tests.cases import some
from tests.store.small_memory import (
    LAYERS,
    TOKENS,
    Expected,
    append_all,
    batches_of,
    expected,
    open_writer,
    token_batch,
)

SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def tables_of(path: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(path / "shard-00000" / "slots.duckdb", read_only=True)


def rows_of(path: Path, layer: str, kind: str) -> np.ndarray:
    """Keys by FAISS, or values by NumPy, of all segments one after the other."""
    folder = path / "shard-00000" / "layers" / layer
    if kind == "values":
        return np.concatenate([np.load(file) for file in sorted(folder.glob("values-*.npy"))])
    indexes = [faiss.read_index(str(file)) for file in sorted(folder.glob("keys-*.faiss"))]
    assert {type(index) for index in indexes} == {faiss.IndexFlatIP}
    return np.concatenate([index.reconstruct_n(0, index.ntotal) for index in indexes])


def key_rows_of(connection: duckdb.DuckDBPyConnection, layer: str) -> list[int]:
    found = connection.execute("SELECT * FROM key_rows WHERE layer = ? ORDER BY first_entry", [layer]).fetchall()
    rows: list[int] = []
    for _, first_entry, part in found:
        assert first_entry == len(rows)
        rows += part
    return rows


def check(path: Path, whole: Expected, layers: tuple[Layer, ...], view: str) -> None:
    with tables_of(path) as connection:
        found = connection.sql(f"SELECT * FROM {quoted(view)} ORDER BY slot").to_arrow_table()
        assert found.to_pydict() == whole.tokens
        for layer in layers:
            entries = "SELECT first_slot, slots FROM entries WHERE layer = ? ORDER BY 1"
            found = connection.execute(entries, [layer.name]).fetchall()
            assert [slot for first, slots in found for slot in range(first, first + slots)] == whole.entries[layer.name]
            if layer.keys and whole.entries[layer.name]:
                keys = rows_of(path, layer.name, "keys")
                keys = keys[key_rows_of(connection, layer.name)] if layer.repeats else keys
                assert keys.tobytes() == whole.keys[layer.name].tobytes()
                assert rows_of(path, layer.name, "values").tobytes() == whole.values[layer.name].tobytes()


@settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(sizes=SIZES, seed=st.integers(0, 99), commit_every=st.integers(1, 4), seconds=st.sampled_from([0.0, 60.0]))
@example(sizes=[0], seed=0, commit_every=1, seconds=60.0)
def test_duckdb_and_faiss_alone_read_every_slot(sizes, seed, commit_every, seconds):
    rng = np.random.default_rng(seed)
    batches = [token_batch(rng, step, rows) for step, rows in enumerate(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        writer = open_writer(path, layers=TOKENS, journal_seconds=seconds)
        append_all(writer, batches, range(commit_every - 1, len(sizes), commit_every)).close()
        check(path, expected(batches, TOKENS), TOKENS, "slots")
        assert not list((path / "shard-00000").glob("journal-*"))


def test_every_row_and_column_has_its_running_digest(tmp_path):
    rng = np.random.default_rng(0)
    batches = [token_batch(rng, step, 3) for step in range(5)]
    append_all(open_writer(tmp_path / "memory", layers=TOKENS), batches, range(5)).close()
    manifest = Manifest.read(tmp_path / "memory")
    with tables_of(tmp_path / "memory") as connection:
        for table, types in some(manifest.tables().items()):
            mark = manifest.shards[0].tables[table]
            rows = connection.sql(f"SELECT * FROM {quoted(table)}").to_arrow_table()
            assert mark.rows == rows.num_rows
            assert list(mark.digests) == list(types) == rows.column_names
            for column in types:
                log = 'SELECT "rows", digest FROM commits WHERE "table" = ? AND "column" = ?'
                digest, start = "", 0
                for stop, logged in connection.execute(log, [table, column]).fetchall():
                    digest = running_digest(digest, rows[column].slice(start, stop - start))
                    assert digest == logged
                    start = stop
                assert (digest, start) == (mark.digests[column], mark.rows)


def test_settings_are_those_that_the_optimizer_has(tmp_path):
    writer = open_writer(tmp_path / "memory")
    batches = batches_of([2, 2, 2])
    groups = ({"lr": 0.5}, {"lr": 0.25, "beta": 0.9, "amsgrad": True}, {})
    for one, group in zip(batches, groups, strict=True):
        logged = [StepLog(one.step, bool(group), None, (ParameterGroup(group),) if group else ())]
        writer.append(Batch(one.step, one.samples, one.extents, one.layers, logs=logged))
        writer.commit()
    writer.close()
    with tables_of(tmp_path / "memory") as connection:
        steps = connection.execute("SELECT step, updated, lr, beta, amsgrad FROM steps").fetchall()
        each = connection.execute('SELECT step, "group", lr, beta, amsgrad FROM parameter_groups').fetchall()
    assert steps == [(0, True, 0.5, None, None), (1, True, 0.25, 0.9, True), (2, False, None, None, None)]
    assert each == [(0, 0, 0.5, None, None), (1, 0, 0.25, 0.9, True)]


def refused(path: Path, batches: list[Batch], layers: tuple[Layer, ...] = LAYERS) -> BadInput:
    writer = append_all(open_writer(path, layers=layers), batches[:-1])
    with pytest.raises(BadInput) as raised:
        writer.append(batches[-1])
    writer.abandon()
    assert not list(path.rglob("*.tmp"))
    return raised.value


def test_a_sample_column_keeps_its_name_and_type(tmp_path):
    first, second = batches_of([2, 2])
    other = Batch(1, second.samples | {"weight": np.array([1, 2])}, second.extents, second.layers)
    error = refused(tmp_path / "type", [first, other])
    assert error.message == "column 'weight' was DOUBLE at the first step and is BIGINT now."
    more = Batch(1, second.samples | {"more": np.array([1, 2])}, second.extents, second.layers)
    error = refused(tmp_path / "more", [first, more])
    assert (error.message, error.field) == ("column 'more' was absent at the first step and is BIGINT now.", "more")


@pytest.mark.parametrize("name", ["position", "SEEN"])
def test_a_user_column_cannot_take_a_name_that_sql_could_not_tell_apart(tmp_path, name):
    (first,) = batches_of([2])
    error = refused(tmp_path / "m", [Batch(0, first.samples | {name: np.arange(2)}, first.extents, first.layers)])
    there = {"Label": "label", "SEEN": "seen"}.get(name, name)
    assert error.message.startswith(f"Column {name!r} cannot be recorded: every memory has a column {there!r}")


def test_a_token_column_keeps_its_type_and_may_come_late(tmp_path):
    rng = np.random.default_rng(0)
    first, second = token_batch(rng, 1, 2), token_batch(rng, 2, 2)
    changed = [Extent("token", 0, 2, 4, columns={"token": np.zeros(8)}), second.extents[1]]
    error = refused(tmp_path / "type", [first, Batch(2, second.samples, changed, second.layers)], TOKENS)
    assert error.message == "column 'token' was BIGINT when it was first said and is DOUBLE now."


def test_rows_that_do_not_fit_their_extent_are_refused(tmp_path):
    (one,) = batches_of([3])
    short = {"layer-1": [LayerRows(0, np.zeros((2, 5), np.float32), np.zeros((2, 3), np.float32))]}
    error = refused(tmp_path / "short", [Batch(0, one.samples, one.extents, short)])
    assert error.message == "layer 'layer-1' has 2 keys for the 3 slots of call 0 in space 'sample'."
    second = {"layer-1": [LayerRows(1, np.zeros((3, 5), np.float32), np.zeros((3, 3), np.float32))]}
    error = refused(tmp_path / "second", [Batch(0, one.samples, one.extents, second)])
    assert error.message == "layer 'layer-1' has rows of call 1, and space 'sample' no such call."


def test_a_shard_without_its_memory_is_refused(tmp_path):
    with pytest.raises(NotAMemory, match="no folder"):
        open_writer(tmp_path / "memory", shard_number=1)
    open_writer(tmp_path / "memory", shards=2).abandon()
    with pytest.raises(NotAMemory, match="was not created for shard-00002"):
        open_writer(tmp_path / "memory", shard_number=2)
    open_writer(tmp_path / "memory", shard_number=1).abandon()
    with pytest.raises(AlreadyExists, match="shard-00001 already exists"):
        open_writer(tmp_path / "memory", shard_number=1)


IN_A_NOTEBOOK = """
import sys
from pathlib import Path
from dualform.store import shard

path, asked = Path(sys.argv[1]), "SELECT current_setting('enable_progress_bar')"
shard.create(path, {}, [])
with shard._writing(path) as connection:
    print(connection.execute(asked).fetchall())
with shard.opened(path) as connection:
    print(connection.execute(asked).fetchall())
"""


def test_no_progress_bar_is_drawn_into_a_notebook(tmp_path):
    """DuckDB draws one where no file of the program was written, and a commit takes two seconds."""
    command = [sys.executable, "-c", IN_A_NOTEBOOK, str(tmp_path / "slots.duckdb")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    assert said == "[(False,)]\n" * 2


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


def files_of(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "shard-00000" / "layers" / "wide").iterdir())


def holds(path: Path, steps: int) -> bool:
    """Whether a memory has all keys of so many steps."""
    whole = np.concatenate([wide_batch(step).layers["wide"][0].keys for step in range(steps)])
    keys = Snapshot.open(path).keys("wide")
    return keys.entry_block(0, keys.entries).tobytes() == whole.tobytes()


# What a frame of the journal has may be written, and so may what is too much for one.
@pytest.mark.parametrize(("seconds", "frame"), [(60.0, 2 * STEP_BYTES), (0.0, 9 * STEP_BYTES)])
def test_little_waits_in_memory(tmp_path, monkeypatch, seconds, frame):
    blocks = mock.Mock(wraps=durable_files.mmap.mmap)
    monkeypatch.setattr(durable_files.mmap, "mmap", blocks)
    monkeypatch.setattr(store, "FRAME_BYTES", frame)
    monkeypatch.setattr(store, "WRITTEN_AT_ONCE", STEP_BYTES)
    writer = open_writer(tmp_path / "memory", WIDE, journal_seconds=seconds)
    append_all(writer, map(wide_batch, range(STEPS)))
    assert Manifest.read(tmp_path / "memory").shards[0].commits == 0
    assert not [name for name in files_of(tmp_path / "memory") if not name.endswith(".tmp")]
    writer.close()
    assert 0 < blocks.call_count <= 4 * STEP_BYTES // BLOCK_BYTES < STEPS * STEP_BYTES // BLOCK_BYTES
    assert files_of(tmp_path / "memory") == ["keys-000000.faiss", "values-000000.npy"]
    assert holds(tmp_path / "memory", STEPS)
    assert check_memory(tmp_path / "memory") == []


def test_a_frame_has_what_was_not_written_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "WRITTEN_AT_ONCE", STEP_BYTES)
    writer = open_writer(tmp_path / "memory", WIDE, journal_seconds=0.0)
    for step in range(STEPS):
        writer.append(wide_batch(step))
        if step in (0, 4, STEPS - 1):
            assert holds(tmp_path / "memory", step + 1)
    writer.abandon()
    assert files_of(tmp_path / "memory") == []
    assert holds(tmp_path / "memory", STEPS)


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
    monkeypatch.setattr(store, "TABLE_BYTES", 10_000)
    writer = open_writer(tmp_path / "memory", journal_seconds=0.0)
    waiting, manifests = [], []
    for one in batches_of([3] * 120):
        writer.append(one)
        waiting.append(sum(table.nbytes for tables in writer._journaled for table in tables.values()))
        manifests.append((tmp_path / "memory" / "memory.json").stat().st_size)
    assert Manifest.read(tmp_path / "memory").shards[0].commits > 3
    assert max(waiting) < 12_500
    assert manifests[-1] < 1.1 * manifests[60]
    assert max(waiting[60:]) <= 1.1 * max(waiting[:60])
    writer.close()
    assert check_memory(tmp_path / "memory") == []


def rows_by_dictionary(batches):
    known, wanted = {}, []
    for keys in batches:
        first = len(known)
        rows = [known.setdefault(key.tobytes(), len(known)) for key in keys]
        wanted.append((rows, [rows.index(row) for row in range(first, len(known))]))
    return wanted


@given(
    batches=st.lists(st.lists(st.integers(0, 30), max_size=9), max_size=12),
    recent=st.sampled_from([1, 3, 1000]),
    firsts=st.sampled_from([1, 3, 1 << 60]),
)
def test_rows_are_those_of_a_dictionary(batches, recent, firsts):
    """Also where the first halves of digests are the same of many keys."""

    def digest(content):
        number = int.from_bytes(xxhash.xxh3_64_digest(content), "little")
        return struct.pack("<QQ", number % firsts, number)

    arrays = [np.array(keys, dtype=np.float32)[:, None] * [1, -1] for keys in batches]
    with mock.patch.object(rows_writer, "_RECENT", recent), mock.patch.object(xxhash, "xxh3_128_digest", digest):
        own = DistinctKeys()
        found = [own.rows_of(keys) for keys in arrays]
    assert [(rows.tolist(), new) for rows, new in found] == rows_by_dictionary(arrays)


def test_keys_are_forgotten_beyond_a_number_of_them(monkeypatch):
    monkeypatch.setattr(rows_writer, "_MOST_REMEMBERED", 10)
    monkeypatch.setattr(rows_writer, "_RECENT", 4)
    own, keys = DistinctKeys(), np.arange(15, dtype=np.float32)[:, None]
    assert own.rows_of(keys)[1] == list(range(15))
    rows, new = own.rows_of(keys)
    assert rows[:10].tolist() == list(range(10)), "what is remembered"
    assert rows[10:].tolist() == [15, 16, 17, 18, 19], "what is stored a second time"
    assert new == [10, 11, 12, 13, 14]
