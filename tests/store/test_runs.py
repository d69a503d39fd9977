"""Several runs read as one memory that was written whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualform.errors import BadInput
from dualform.store.batch import Batch
from dualform.store.reading import space
from dualform.store.reading.runs import Runs
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.store import test_merged
from tests.store.small_memory import TOKENS, expected, open_writer, token_batch

FIRST, SECOND = 4, 5


def tokens(steps: int, seed: int) -> list[Batch]:
    return [token_batch(np.random.default_rng(100 * seed + step), step, 3) for step in range(steps)]


def write(path, batches, finish=True):
    writer = open_writer(path, TOKENS, journal_seconds=0.0)
    for step, one in enumerate(batches):
        writer.append(one)
        if step == 1:
            writer.commit()
    writer.close() if finish else writer.abandon()
    return path


@pytest.fixture(params=["read whole", "read for a look-up"])
def reading(request, monkeypatch):
    monkeypatch.setattr(space, "LONG", 1 << 22 if request.param == "read whole" else 1)


@pytest.mark.parametrize("finish", [True, False])
def test_slots_entries_and_rows_are_those_of_one_memory(tmp_path, reading, finish):
    first, second = tokens(FIRST, 1), tokens(SECOND, 2)
    memory = Runs.of([write(tmp_path / "a", first), write(tmp_path / "b", second, finish)])
    wanted = expected([*first, *(replace(one, step=one.step + FIRST) for one in second)], TOKENS)
    count = len(wanted.tokens["slot"])
    assert (memory.steps, memory.count("token"), memory.recording) == (FIRST + SECOND, count, not finish)
    ids = np.array([count - 1, 0, 5, 5, count // 2])
    for name in memory.columns("token"):
        of_run = [int(step >= FIRST) for step in wanted.tokens["step"]]
        column = of_run if name == "run" else wanted.tokens[name]
        at = memory.space("token").at(ids, [name])[name].to_pylist()
        assert at == [column[slot] for slot in ids], name
        assert memory.column("token", name).tolist() == column, name
    for layer in TOKENS:
        entries = memory.entries(layer.name)
        assert entries.slots_of(np.arange(entries.count)).tolist() == wanted.entries[layer.name]
        if layer.keys:
            keys, values = memory.keys(layer.name), memory.values(layer.name)
            assert keys.entry_block(0, keys.entries).tobytes() == wanted.keys[layer.name].tobytes()
            assert values.block(0, entries.count).tobytes() == wanted.values[layer.name].tobytes()
    assert memory.table("steps")["step"].to_pylist() == list(range(FIRST + SECOND))
    assert memory.table("steps")["first_step"].to_pylist() == list(range(FIRST + SECOND))
    assert len(set(memory.table("samples")["datapoint"].to_pylist())) == memory.table("samples").num_rows


def test_a_run_may_have_several_shards(tmp_path, reading):
    test_merged.write(tmp_path / "a", TOKENS, test_merged.tokens(3))
    write(tmp_path / "b", tokens(SECOND, 2))
    parts = [Snapshot.open(tmp_path / name) for name in "ab"]
    memory, before = Runs.of([tmp_path / "a", tmp_path / "b"]), parts[0].count("token")
    ids = np.array([before + 3, 2, before - 1, before])
    for name in some(parts[0].columns("token")):
        if name not in ("slot", "step"):
            column = [entry for part in parts for entry in part.column("token", name).tolist()]
            at = memory.space("token").at(ids, [name])[name].to_pylist()
            assert at == [column[slot] for slot in ids], name
            assert memory.column("token", name).tolist() == column, name
    for layer in TOKENS:
        if layer.keys:
            keys = [part.keys(layer.name) for part in parts]
            stacked = np.concatenate([own.entry_block(0, own.entries) for own in keys])
            assert memory.keys(layer.name).entry_block(0, len(stacked)).tobytes() == stacked.tobytes()
            values = [part.values(layer.name) for part in parts]
            stacked = np.concatenate([own.block(0, own.rows) for own in values])
            assert memory.values(layer.name).block(0, len(stacked)).tobytes() == stacked.tobytes()


def test_a_column_of_two_types_is_refused(tmp_path):
    batches = tokens(2, 1)
    write(tmp_path / "a", batches)
    write(tmp_path / "b", [replace(one, samples={**one.samples, "weight": np.arange(3)}) for one in tokens(2, 2)])
    with pytest.raises(BadInput) as caught:
        Runs.of([tmp_path / "a", tmp_path / "b"])
    assert str(caught.value) == (
        f"column 'weight' is BIGINT in {tmp_path / 'b'}, but DOUBLE in an earlier run. Open these runs one by one."
    )


def test_runs_of_one_folder_whose_ranks_said_other_types_each_time_have_one_that_holds_them(tmp_path):
    write(tmp_path / "a", tokens(2, 1))
    write(tmp_path / "b", [replace(one, samples={**one.samples, "weight": np.arange(3)}) for one in tokens(2, 2)])
    parts = [Snapshot.open(tmp_path / name) for name in ("a", "b")]
    memory = Runs(parts, [tmp_path])
    assert memory.columns("token")["weight"] == "DOUBLE"
    own = [part.column("token", "weight") for part in parts]
    assert memory.column("token", "weight").tolist() == [*own[0].tolist(), *own[1].astype(float).tolist()]


def test_a_column_of_ones_own_named_run_stays(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        said = [replace(one, samples={**one.samples, "run": np.full(3, 7 * seed)}) for one in tokens(2, seed)]
        write(tmp_path / name, [replace(one, unknown={**one.unknown, "run": 7 * seed}) for one in said])
    memory = Runs.of([tmp_path / "a", tmp_path / "b"])
    half = memory.runs[0].count("token")
    assert memory.column("token", "run").tolist() == [7] * half + [14] * (memory.count("token") - half)
