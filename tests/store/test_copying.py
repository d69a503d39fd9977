"""A backup is a whole memory of one moment, also of one that is being written, or nothing at all."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.errors import AlreadyExists, BadInput, Damaged, NotAMemory
from dualform.store.maintenance import copying
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from tests.damage import flip
from tests.record.resumed_training import Training
from tests.store.small_memory import LAYERS, OTHERS, batches_of, open_writer, write

STEPS = 150


def record(path: Path, reached, enough) -> None:
    """Steps of two rows, with a frame or a commit now and then, until it is `enough`."""
    writer = open_writer(path, others=OTHERS, journal_seconds=0.01)
    for step, one in enumerate(batches_of([2] * STEPS)):
        writer.append(one)
        if step % 7 == 6:
            writer.commit()
        if step == 9:
            reached.set()
        if enough.wait(0.02):
            break
    enough.wait()
    os._exit(9)


@pytest.fixture
def recording(tmp_path):
    context = multiprocessing.get_context("forkserver")
    reached, enough = context.Event(), context.Event()
    process = context.Process(target=record, args=(tmp_path / "m", reached, enough))
    process.start()
    assert reached.wait(60)
    yield tmp_path / "m"
    enough.set()
    process.join()
    assert process.exitcode == 9


def same(copy: Snapshot, source: Snapshot) -> None:
    """Every slot of the copy is the source's."""
    slots = copy.count("sample")
    for name in copy.columns("sample"):
        assert copy.column("sample", name).tolist() == source.column("sample", name)[:slots].tolist()
    for layer in LAYERS:
        for kind in ("keys", "values"):
            one, other = (getattr(memory, kind)(layer.name) for memory in (copy, source))
            read = "entry_block" if kind == "keys" else "block"
            assert getattr(one, read)(0, slots).tobytes() == getattr(other, read)(0, slots).tobytes()


def test_a_memory_is_copied_while_another_process_records_it(recording, tmp_path):
    copies = []
    for number in range(3):
        before = opened(recording).steps
        copies.append(copy_memory(recording, tmp_path / str(number)))
        assert copies[-1].steps >= before
    for number, copy in enumerate(copies):
        same(copy, opened(recording))
        assert check_memory(tmp_path / str(number)) == []
        assert copy.cut_off == f"the recording was cut off after step {copy.steps - 1}."
    queries = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    with dualform.open(tmp_path / "0") as one, dualform.open(recording) as other:
        mask = f"step < {copies[0].steps}"
        own, theirs = (memory.topk("layer-0", queries, k=5, where=mask) for memory in (one, other))
    assert own.ids.tolist() == theirs.ids.tolist()
    assert own.flat_scores.tobytes() == theirs.flat_scores.tobytes()


def test_a_copy_shares_no_file_and_leaves_behind_what_is_derived(tmp_path):
    write(tmp_path / "m", [3, 2, 4])
    (tmp_path / "m" / "shard-00000" / "layers" / "layer-0" / "keys-000000.faiss.codes").write_bytes(b"derived")
    copy = copy_memory(tmp_path / "m", tmp_path / "there" / "copy")
    same(copy, opened(tmp_path / "m"))
    assert (copy.cut_off, check_memory(tmp_path / "there" / "copy")) == ("", [])
    files = {
        folder: {path.relative_to(tmp_path / folder).as_posix(): path.stat().st_ino for path in found if path.is_file()}
        for folder in ("m", "there/copy")
        for found in [sorted((tmp_path / folder).rglob("*"))]
    }
    assert set(files["m"]) - set(files["there/copy"]) == {"shard-00000/layers/layer-0/keys-000000.faiss.codes"}
    assert not set(files["m"].values()) & set(files["there/copy"].values())
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["copy"]


def test_a_training_that_was_resumed_is_copied_with_all_its_runs(tmp_path):
    first = Training()
    first.run(tmp_path / "m", 4, saved=(2,), checkpoint=tmp_path / "after")
    again = Training()
    again.load(tmp_path / "after")
    again.run(tmp_path / "m", 5, resume=True)
    copy_memory(tmp_path / "m", tmp_path / "copy")
    with dualform.open(tmp_path / "m") as one, dualform.open(tmp_path / "copy") as other:
        assert one.info().steps == other.info().steps == 5
        assert all((own == other.weights()[name]).all() for name, own in one.weights().items())
        assert all(reconstruction.exact for reconstruction in other.verify().values())


def nothing_left(folder: Path) -> bool:
    return sorted(path.name for path in folder.iterdir()) == ["m"]


@pytest.mark.parametrize("file", ["keys-000000.faiss", "slots.duckdb", "initial.safetensors"])
def test_a_damaged_memory_is_not_copied(tmp_path, file):
    write(tmp_path / "m", [3, 2])
    found = next((tmp_path / "m").rglob(file))
    flip(found)
    with pytest.raises(Damaged) as told:
        copy_memory(tmp_path / "m", tmp_path / "copy")
    assert str(found) in told.value.message
    assert nothing_left(tmp_path)


def test_where_it_fails_nothing_is_left(tmp_path, monkeypatch):
    write(tmp_path / "m", [3, 2])
    copied = copying.copy_file

    def full(source: Path, target: Path) -> None:
        copied(source, target)
        if target.name.startswith("values"):
            raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(copying, "copy_file", full)
    with pytest.raises(OSError, match="No space left"):
        copy_memory(tmp_path / "m", tmp_path / "copy")
    assert nothing_left(tmp_path)


def test_what_a_killed_copy_left_is_cleared(tmp_path):
    write(tmp_path / "m", [3, 2])
    shutil.copytree(tmp_path / "m" / "weights", tmp_path / ".copy.partial" / "weights")
    copy_memory(tmp_path / "m", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "m"]


def test_places_where_nothing_is_copied_to(tmp_path):
    write(tmp_path / "m", [2])
    (tmp_path / "there").mkdir()
    with pytest.raises(AlreadyExists, match="there already exists"):
        copy_memory(tmp_path / "m", tmp_path / "there")
    with pytest.raises(BadInput, match="is inside"):
        copy_memory(tmp_path / "m", tmp_path / "m" / "copy")
    with pytest.raises(NotAMemory):
        copy_memory(tmp_path / "there", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "there"]
