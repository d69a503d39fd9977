"""Slots of several spaces, regular and not, read back by arithmetic as plain loops say they are."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from dualform.errors import Damaged, NotFound
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.query.where import mask
from dualform.store.journal import journal_path
from dualform.store.maintenance.check import check_memory
from dualform.store.reading import shard_tables
from dualform.store.reading.shard_tables import ShardTables
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import TOKENS, expected, open_writer, token_batch

SIZES = [3, 2, 5, 1, 4, 2]


def write(path, commit_after, finish=True, **options):
    """Steps of tokens; returns what they should read back as, and the writer."""
    rng = np.random.default_rng(3)
    batches = [token_batch(rng, step, rows) for step, rows in enumerate(SIZES)]
    writer = open_writer(path, TOKENS, **options)
    for step, batch in enumerate(batches):
        writer.append(batch)
        if step in commit_after:
            writer.commit()
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
    for layer in TOKENS:
        entries = memory.entries(layer.name)
        slots = np.arange(memory.count("token")) if entries.slots is None else entries.slots
        assert slots.tolist() == wanted.entries[layer.name]
        assert entries.slots_of(np.arange(entries.count)).tolist() == slots.tolist()
        numbers = {slot: entry for entry, slot in enumerate(slots.tolist())}
        every = np.arange(memory.count("token"))
        assert entries.of(every).tolist() == [numbers.get(slot, -1) for slot in every.tolist()]
        if layer.keys:
            keys = memory.keys(layer.name)
            assert keys.entry_block(0, keys.entries).tobytes() == wanted.keys[layer.name].tobytes()
            values = memory.values(layer.name)
            assert values.block(0, values.rows).tobytes() == wanted.values[layer.name].tobytes()


@pytest.mark.parametrize("commit_after", [(), (0,), (1, 3), tuple(range(len(SIZES)))])
def test_every_column_and_entry_is_read_back(tmp_path, commit_after):
    wanted = write(tmp_path / "memory", commit_after)
    memory = Snapshot.open(tmp_path / "memory")
    same(memory, wanted)
    assert check_memory(tmp_path / "memory") == []
    assert memory.cut_off == ""


@pytest.mark.parametrize("commit_after", [(), (2,), (0, 4)])
def test_a_recording_that_was_cut_off_shows_what_its_journal_holds(tmp_path, commit_after):
    wanted = write(tmp_path / "memory", commit_after, finish=False, journal_seconds=0.0)
    memory = Snapshot.open(tmp_path / "memory")
    assert memory.frames > 0
    same(memory, wanted)
    assert memory.cut_off == "the recording was cut off after step 5."
    assert check_memory(tmp_path / "memory") == []


def test_a_torn_last_frame_is_no_part_of_the_memory_and_a_frame_altered_before_is_an_error(tmp_path):
    path = tmp_path / "memory"
    write(path, (1,), finish=False, journal_seconds=0.0)
    journal = journal_path(path / "shard-00000", 1)
    content = journal.read_bytes()
    shutil.copytree(path, tmp_path / "torn")
    journal_path(tmp_path / "torn" / "shard-00000", 1).write_bytes(content[:-1])
    memory = Snapshot.open(tmp_path / "torn")
    assert (memory.steps, memory.torn) == (len(SIZES) - 1, True)
    journal.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    with pytest.raises(Damaged, match=r"journal-000001 was altered: frame 0 is not what was written"):
        Snapshot.open(path)
    assert check_memory(path) == [f"{journal} was altered: frame 0 is not what was written."]


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


def test_columns_of_samples_are_told_from_those_of_slots(tmp_path):
    write(tmp_path / "memory", (2,))
    memory = Snapshot.open(tmp_path / "memory")
    assert memory.space("token").sample_columns == {"step", "row", "label", "sample", "weight", "seen"}
    columns = memory.column("token", "label")
    space = memory.space("token")
    spread = space.spread(np.arange(space.samples.count))
    labels = space.samples.column("label").to_pylist()
    assert columns.tolist() == [labels[datapoint] for datapoint in spread]
    with pytest.raises(NotFound, match=r"no space 'sample'\. Spaces: token"):
        memory.space("sample")


def test_a_small_file_is_opened_once_whatever_is_asked_of_it(tmp_path, monkeypatch):
    write(tmp_path / "memory", ())
    times = []
    opened = shard_tables.opened
    monkeypatch.setattr(shard_tables, "opened", lambda *own, **options: times.append(own) or opened(*own, **options))
    memory = Snapshot.open(tmp_path / "memory")
    with Engine(memory, choose("numpy")) as engine:
        mask.selection(engine._view, engine._view.snapshot.layer("every"), "label > 3 AND position < 2")
        engine.slots(np.arange(5), "token")
        engine.info()
    assert len(times) == 1


def test_of_many_rows_opening_reads_where_slots_lie_and_a_mask_the_columns_that_it_names(tmp_path, monkeypatch):
    write(tmp_path / "memory", (2,))
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
