"""What is written is what is read, by arithmetic and by look-ups of few slots, as plain loops have it, and at any
moment of the writing.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dualform.errors import Damaged, NotAMemory
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.query.where import mask
from dualform.store import shard, tables
from dualform.store.batch import Batch
from dualform.store.files.segment import SegmentCache
from dualform.store.maintenance.check import check_memory
from dualform.store.reading import shard_tables, space as space_file
from dualform.store.reading.runs import Runs
from dualform.store.reading.shard_tables import ShardTables
from dualform.store.reading.snapshot import Snapshot
from tests.reliability import report, rounds
from tests.store.small_memory import (
    LAYERS,
    OTHERS,
    TOKENS,
    Expected,
    append_all,
    batches_of,
    check_rows,
    expected,
    open_writer,
    other_row,
    other_values,
    token_batch,
    write as write_samples,
)


def test_blocks_and_rows_do_not_depend_on_segments_or_cache(tmp_path):
    expected = write_samples(tmp_path / "memory", [7, 3, 6, 5, 4], commit_every=2).keys["layer-1"]
    for cache in (SegmentCache(), SegmentCache(most_bytes=0), SegmentCache(most_bytes=200)):
        keys = Snapshot.open(tmp_path / "memory", cache).keys("layer-1")
        for size in (1, 4, 25, 100):
            blocks = list(keys.blocks(size))
            assert [start for start, _ in blocks] == list(range(0, 25, size))
            assert np.concatenate([block for _, block in blocks]).tobytes() == expected.tobytes()
        rows = np.array([24, 0, 7, 7, 9, 10])
        assert keys.take(rows).tobytes() == expected[rows].tobytes()


def test_commits_by_itself_once_enough_was_appended(tmp_path):
    writer = append_all(open_writer(tmp_path / "memory", segment_bytes=1000), batches_of([4] * 12))
    assert Snapshot.open(tmp_path / "memory").commits > 1
    writer.close()
    assert Snapshot.open(tmp_path / "memory").count("sample") == 48


def test_refuses_what_is_no_memory(tmp_path):
    with pytest.raises(NotAMemory, match="no folder"):
        Snapshot.open(tmp_path / "nowhere")
    with pytest.raises(NotAMemory, match=r"is not a dualform memory \(no memory\.json\)"):
        Snapshot.open(tmp_path)
    write_samples(tmp_path / "memory", [2])
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


SIZES = [3, 2, 5, 1, 4, 2]


def write_tokens(path, commit_after, finish=True, **options):
    """Steps of tokens; returns what they should read back as, and the writer."""
    rng = np.random.default_rng(3)
    batches = [token_batch(rng, step, rows) for step, rows in enumerate(SIZES)]
    writer = append_all(open_writer(path, TOKENS, **options), batches, commit_after)
    writer.close() if finish else writer.abandon()
    return expected(batches, TOKENS)


def same(memory, wanted):
    """Whether every column, entry, key and value is what was appended."""
    space = memory.space("token")
    for name, column in wanted.tokens.items():
        assert memory.column("token", name).tolist() == column, name
        everything = space.between(0, space.count, [name])[name].to_pylist()
        assert everything == column
        some = np.array([len(column) - 1, 0, 7, 7, 11])
        assert space.at(some, [name])[name].to_pylist() == [column[i] for i in some]
        assert space.between(5, 17, [name])[name].to_pylist() == column[5:17]
        null = space.is_null(name)
        assert np.broadcast_to(null, len(column)).tolist() == [value is None for value in column]
    every = np.arange(memory.count("token"))
    for layer in TOKENS:
        entries = memory.entries(layer.name)
        slots = every if entries.slots is None else entries.slots
        assert slots.tolist() == wanted.entries[layer.name]
        numbers = {slot: entry for entry, slot in enumerate(slots.tolist())}
        assert entries.of(every).tolist() == [numbers.get(slot, -1) for slot in every.tolist()]
    check_rows(memory, TOKENS, wanted)


@pytest.mark.parametrize("commit_after", [(), (1, 3), tuple(range(len(SIZES)))])
def test_every_column_and_entry_is_read_back(tmp_path, commit_after):
    wanted = write_tokens(tmp_path / "memory", commit_after)
    memory = Snapshot.open(tmp_path / "memory")
    same(memory, wanted)
    assert check_memory(tmp_path / "memory") == []
    assert memory.cut_off == ""


@pytest.mark.parametrize("commit_after", [(), (0, 4)])
def test_a_recording_that_was_cut_off_shows_what_its_journal_holds(tmp_path, commit_after):
    wanted = write_tokens(tmp_path / "memory", commit_after, finish=False, journal_seconds=0.0)
    memory = Snapshot.open(tmp_path / "memory")
    assert memory.frames > 0
    same(memory, wanted)
    assert memory.cut_off == "the recording was cut off after step 5."
    assert check_memory(tmp_path / "memory") == []


def test_a_reader_sees_that_a_recording_went_on(tmp_path):
    rng = np.random.default_rng(3)
    writer = open_writer(tmp_path / "memory", TOKENS, journal_seconds=0.0)
    writer.append(token_batch(rng, 0, 2))
    memory = Snapshot.open(tmp_path / "memory")
    assert not memory.moved()
    writer.append(token_batch(rng, 1, 2))
    assert memory.moved()
    memory = Snapshot.open(tmp_path / "memory")
    assert (memory.steps, memory.commits, memory.moved()) == (2, 0, False)
    writer.commit()
    assert memory.moved()
    assert Snapshot.open(tmp_path / "memory").commits == 1
    assert memory.column("token", "token").count() == 8, "a snapshot reads columns late, and stays as of its moment"
    writer.abandon()


def test_of_many_rows_opening_reads_where_slots_lie_and_a_mask_the_columns_that_it_names(tmp_path, monkeypatch):
    write_tokens(tmp_path / "memory", (2,))
    monkeypatch.setattr(shard_tables, "FEW_ROWS", -1)
    loaded = []
    load = ShardTables._load

    def noted(self, connection, table, names):
        loaded.extend((table, name) for name in names)
        load(self, connection, table, names)

    monkeypatch.setattr(ShardTables, "_load", noted)
    memory = Snapshot.open(tmp_path / "memory")
    tables = {table for table, _ in loaded}
    assert tables == {"extents_token", "entries", "segments"}
    assert not {name for table, name in loaded if table == "extents_token"} & {"row", "position", "token", "dataset"}
    del loaded[:]
    with Engine(memory, choose("numpy")) as engine:
        mask.selection(engine._view, engine._view.snapshot.layer("every"), "label > 3")
        assert set(loaded) == {("extents_token", "row"), ("samples", "row"), ("samples", "step"), ("samples", "label")}
        del loaded[:]
        mask.selection(engine._view, engine._view.snapshot.layer("every"), "label > 3 AND position < 2")
        assert loaded == [("extents_token", "position")]


STEPS, LINK = 20, 20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(shard_tables, "FEW_ROWS", 10)
    monkeypatch.setattr(shard, "LINK_ENTRIES", LINK)
    monkeypatch.setattr(space_file, "LONG", 1)


@pytest.fixture
def batches():
    return [token_batch(np.random.default_rng(step), step, 3) for step in range(STEPS)]


def write_long(path, batches, finish=True):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "LINK_ENTRIES", LINK)
        writer = open_writer(path, TOKENS, journal_seconds=60.0 if finish else 0.0)
        append_all(writer, batches, (8, 17))
        writer.close() if finish else writer.abandon()
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A memory of `batches`, which is only read."""
    written = [token_batch(np.random.default_rng(step), step, 3) for step in range(STEPS)]
    return write_long(tmp_path_factory.mktemp("long") / "m", written)


@pytest.mark.parametrize("finish", [True, False])
def test_any_slots_are_those_of_the_columns(small, tmp_path, long, batches, finish):
    wanted = expected(batches, TOKENS).tokens
    path = long if finish else write_long(tmp_path / "m", batches, finish)
    memory, count = Snapshot.open(path), len(wanted["slot"])
    rng = np.random.default_rng(0)
    for size in (0, 1, 7):
        ids = rng.integers(0, count, size)
        found = memory.space("token").at(ids, list(memory.columns("token")))
        for name in memory.columns("token"):
            assert found[name].to_pylist() == [wanted[name][slot] for slot in ids], name
    assert check_memory(path) == []
    for name in memory.columns("token"):
        assert memory.column("token", name).tolist() == wanted[name], name


def test_a_column_named_as_duckdb_numbers_its_rows_is_read_like_any_other(small, tmp_path, batches):
    said = [replace(one, samples={**one.samples, "rowid": np.full(3, 7 * n)}) for n, one in enumerate(batches)]
    said = [replace(one, unknown={**one.unknown, "rowid": 7 * n}) for n, one in enumerate(said)]
    space = Snapshot.open(write_long(tmp_path / "m", said)).space("token")
    for slot in (0, space.count // 2, space.count - 1):
        found = space.at(np.array([slot]), ["step", "rowid"])
        assert found["rowid"].to_pylist() == [7 * step for step in found["step"].to_pylist()]


def test_a_link_that_was_altered_is_named_and_others_are_answered(small, long, tmp_path):
    shutil.copytree(long, tmp_path / "m")
    file = tmp_path / "m" / "shard-00000" / "slots.duckdb"
    with duckdb.connect(file) as connection:
        altered = "CASE WHEN step = 18 THEN [x + 1 for x in token] ELSE token END AS token"
        connection.execute(f"CREATE TABLE other AS SELECT * REPLACE ({altered}) FROM extents_token ORDER BY first_slot")
        connection.execute("DROP TABLE extents_token")
        connection.execute("ALTER TABLE other RENAME TO extents_token")
    memory = Snapshot.open(tmp_path / "m")
    assert memory.space("token").at(np.array([0, 20]), ["token"])["token"].to_pylist()[1] is not None
    first = int(memory.space("token").extents.first_slot[2 * 18])
    sentence = f"{file} was altered: column 'token' of table 'extents_token' does not match its checksum."
    with pytest.raises(Damaged) as caught:
        memory.space("token").at(np.array([first]), ["token"])
    assert caught.value.message == sentence
    assert sentence in check_memory(tmp_path / "m")


def test_texts_of_more_bytes_than_32_bits_count_are_read_as_any(small, tmp_path, batches, monkeypatch):
    def everything():
        memory = Runs.of(runs)
        found = [(name, memory.column("token", name).tolist()) for name in memory.columns("token")]
        found += [(table, memory.table(table).to_pylist()) for table in memory.manifest.tables()]
        slots = np.array([3, 0, 77, 150])
        looked_up = memory.space("token").at(slots, list(memory.columns("token")))
        return [*found, memory.datasets(), looked_up.to_pylist()]

    runs = [write_long(tmp_path / "first", batches[:6]), write_long(tmp_path / "second", batches[6:11])]
    before = everything()
    monkeypatch.setattr(tables, "MOST_BYTES", 0)
    monkeypatch.setattr(shard_tables, "ROWS_AT_ONCE", 13)
    assert everything() == before


RECORDED, BATCH, FLUSH_EVERY = 60, 16, 6


def record(path: Path, journal_seconds: float) -> None:
    """Put the same batches every time, with a commit now and then."""
    from dualform.record.sink import SinkThread
    from dualform.store.batch import Ending, Header
    from dualform.store.writing import writer

    writer.JOURNAL_SECONDS = journal_seconds
    ones = {"layer-0.weight": (5, 6), "layer-0.bias": (5,), "layer-1.weight": (3, 5)}
    initial = {name: np.ones(shape, np.float32) for name, shape in ones.items()}
    header = Header(path, LAYERS, "SGD", "sgd", "", initial, label_names={"first": ["zero", "one"]}, others=OTHERS)
    sink = SinkThread(lambda: writer.Writer(header))
    for step, one in enumerate(recorded_batches()):
        sink.put(replace(one, others=[other_row(step)]))
        if step % FLUSH_EVERY == FLUSH_EVERY - 1:
            sink.flush()
        time.sleep(0.01)
    sink.close(Ending(final={}))


def recorded_batches() -> list[Batch]:
    return batches_of([BATCH] * RECORDED)


def check_steps(memory: Snapshot, whole: Expected) -> int:
    """Hold what a memory shows against the first steps of the recording; returns how many it shows."""
    slots = memory.count("sample")
    assert slots % BATCH == 0, "a step is half there"
    assert slots <= RECORDED * BATCH
    if not slots:  # and no columns yet, for the first step says what they are
        return 0
    for layer in LAYERS:
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        assert keys.entry_block(0, slots).tobytes() == whole.keys[layer.name][:slots].tobytes()
        assert values.block(0, slots).tobytes() == whole.values[layer.name][:slots].tobytes()
    for column in ("slot", "step", "row", "label", "sample", "dataset", "weight"):
        assert memory.column("sample", column).tolist() == whole.columns[column][:slots]
    assert memory.table("steps")["step"].to_pylist() == list(range(slots // BATCH))
    assert memory.others.moments == list(range(slots // BATCH))
    for at_step in memory.others.moments:
        assert all(np.array_equal(own, other_values(at_step)[n]) for n, own in memory.others.at(at_step).items())
    return slots // BATCH


@pytest.mark.soak
def test_a_reader_during_writing_sees_whole_steps_and_keeps_them(tmp_path):
    context, whole = multiprocessing.get_context("forkserver"), expected(recorded_batches(), LAYERS)
    count, moments = rounds(1, 20), list[int]()
    for number in range(count):
        path = tmp_path / str(number)
        # Every second recording writes a frame of its journal for each step, too.
        writing = context.Process(target=record, args=(path, 1e4 if number % 2 else 0.0))
        writing.start()
        held, seen = [], 0
        while writing.is_alive():
            try:
                memory = Snapshot.open(path)
            except NotAMemory:
                assert not held, "a memory that was there is gone"
                continue
            steps = check_steps(memory, whole)
            assert steps >= seen, "what was there is gone"
            if steps > seen:
                held.append((memory, steps))
                moments.append(steps)
            seen = steps
            time.sleep(0.01)
        writing.join()
        assert writing.exitcode == 0
        for memory, steps in held:
            assert check_steps(memory, whole) == steps, "what a reader holds has changed"
        assert check_steps(Snapshot.open(path), whole) == RECORDED
    assert any(0 < steps < RECORDED for steps in moments)
    report(
        "a memory opened again and again while another process writes it",
        seed=0,
        count=len(moments),
        outcome="each time whole steps, none of them gone again, and the same ones once the writing has ended",
    )
