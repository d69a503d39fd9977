"""Few slots of many are looked up without reading the columns of all."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pytest

from dualform.errors import Damaged
from dualform.store import shard, tables
from dualform.store.maintenance.check import check_memory
from dualform.store.reading import shard_tables, space as space_file
from dualform.store.reading.runs import Runs
from dualform.store.reading.shard_tables import ShardTables
from dualform.store.reading.snapshot import Snapshot
from tests.store import test_merged
from tests.store.small_memory import TOKENS, expected, open_writer, token_batch

STEPS, LINK = 40, 30


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(shard_tables, "FEW_ROWS", 10)
    monkeypatch.setattr(shard, "LINK_ENTRIES", LINK)
    monkeypatch.setattr(space_file, "LONG", 1)


@pytest.fixture
def batches():
    return [token_batch(np.random.default_rng(step), step, 3) for step in range(STEPS)]


def write(path, batches, finish=True):
    writer = open_writer(path, TOKENS, journal_seconds=0.0)
    for step, one in enumerate(batches):
        writer.append(one)
        if step % 17 == 16:
            writer.commit()
    writer.close() if finish else writer.abandon()
    return path


@pytest.mark.parametrize("finish", [True, False])
def test_any_slots_are_those_of_the_columns(tmp_path, batches, finish):
    wanted = expected(batches, TOKENS).tokens
    memory, count = Snapshot.open(write(tmp_path / "m", batches, finish)), len(wanted["slot"])
    rng = np.random.default_rng(0)
    for size in (0, 1, 7):
        ids = rng.integers(0, count, size)
        found = memory.space("token").at(ids, list(memory.columns("token")))
        for name in memory.columns("token"):
            assert found[name].to_pylist() == [wanted[name][slot] for slot in ids], name
    assert check_memory(tmp_path / "m") == []
    for name in memory.columns("token"):
        assert memory.column("token", name).tolist() == wanted[name], name


def test_a_column_named_as_duckdb_numbers_its_rows_is_read_like_any_other(tmp_path, batches):
    said = [replace(one, samples={**one.samples, "rowid": np.full(3, 7 * n)}) for n, one in enumerate(batches)]
    said = [replace(one, unknown={**one.unknown, "rowid": 7 * n}) for n, one in enumerate(said)]
    space = Snapshot.open(write(tmp_path / "m", said)).space("token")
    for slot in (0, space.count // 2, space.count - 1):
        found = space.at(np.array([slot]), ["step", "rowid"])
        assert found["rowid"].to_pylist() == [7 * step for step in found["step"].to_pylist()]


def test_of_a_list_column_only_the_links_that_are_asked_for_are_read(tmp_path, batches, monkeypatch):
    memory = Snapshot.open(write(tmp_path / "m", batches))
    read = []
    part = ShardTables._part
    monkeypatch.setattr(ShardTables, "_part", lambda self, *key: read.append(key) or part(self, *key))
    memory.space("token").at(np.array([0, 1]), ["token"])
    assert read == [("extents_token", "token", 0)]
    assert ("extents_token", "token") not in memory._tables._held
    assert len(memory._tables._commits["extents_token", "token"]) > 10


def test_a_link_that_was_altered_is_named_and_others_are_answered(tmp_path, batches):
    write(tmp_path / "m", batches)
    file = tmp_path / "m" / "shard-00000" / "slots.duckdb"
    with duckdb.connect(file) as connection:
        altered = "CASE WHEN step = 38 THEN [x + 1 for x in token] ELSE token END AS token"
        connection.execute(f"CREATE TABLE other AS SELECT * REPLACE ({altered}) FROM extents_token ORDER BY first_slot")
        connection.execute("DROP TABLE extents_token")
        connection.execute("ALTER TABLE other RENAME TO extents_token")
    memory = Snapshot.open(tmp_path / "m")
    assert memory.space("token").at(np.array([0, 20]), ["token"])["token"].to_pylist()[1] is not None
    first = int(memory.space("token").extents.first_slot[2 * 38])
    sentence = f"{file} was altered: column 'token' of table 'extents_token' does not match its checksum."
    with pytest.raises(Damaged) as caught:
        memory.space("token").at(np.array([first]), ["token"])
    assert caught.value.message == sentence
    assert sentence in check_memory(tmp_path / "m")


def test_slots_of_several_shards_are_looked_up_likewise(tmp_path, monkeypatch):
    test_merged.write(tmp_path / "m", TOKENS, test_merged.tokens(3))
    memory = Snapshot.open(tmp_path / "m")
    ids = np.array([40, 2, 3, 90, 2])
    found = {name: memory.space("token").at(ids, [name])[name].to_pylist() for name in memory.columns("token")}
    assert all(("extents_token", "token") not in part._held for part in memory._tables._parts)
    monkeypatch.setattr(space_file, "LONG", 1 << 30)
    for name, column in found.items():
        assert column == memory.column("token", name)[ids].tolist(), name


def test_what_is_said_of_a_few_slots_is_read_in_parts_once_and_then_whole(tmp_path, batches):
    path = write(tmp_path / "run", batches, finish=False)
    memory, whole = Snapshot.open(path), Snapshot.open(path)
    own = memory.space("token")._token_columns
    names = [name for name in memory.space("token").samples.types if name not in (*own, "datapoint", "step", "row")]
    assert names
    slots = np.array([7, 250, 7, 31])
    wanted = {name: whole.column("token", name)[slots] for name in names}
    held = memory._tables._held
    for read_whole in (False, True):
        found = memory.space("token").at(slots, names)
        assert {("samples", name) in held for name in names} == {read_whole}
        for name in names:
            assert found[name].to_pylist() == np.ma.array(wanted[name], dtype=object).filled(None).tolist()


@pytest.mark.parametrize("times", [1, 2])
def test_texts_of_more_bytes_than_32_bits_count_are_read_as_any(tmp_path, batches, monkeypatch, times):
    paths = [tmp_path / str(number) for number in range(times)]
    for path in paths:
        write(path, batches)

    def everything():
        memory = Runs.of(paths)
        found = [(name, memory.column("token", name).tolist()) for name in memory.columns("token")]
        found += [(table, memory.table(table).to_pylist()) for table in memory.manifest.tables()]
        slots = np.array([3, 0, 77, 200])
        looked_up = memory.space("token").at(slots, list(memory.columns("token")))
        return [*found, memory.datasets(), looked_up.to_pylist()]

    before = everything()
    monkeypatch.setattr(tables, "MOST_BYTES", 0)
    monkeypatch.setattr(shard_tables, "ROWS_AT_ONCE", 7)
    assert everything() == before
