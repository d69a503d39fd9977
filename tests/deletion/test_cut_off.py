"""Whenever deletion is cut off, or meets a training that is resumed, the memory is whole: the old or the new one."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.deletion import delete
from dualform.errors import Damaged, EmptyMask, Locked, RecordingError
from dualform.record.batches import StepWriter
from dualform.store.maintenance.check import check_memory, what_is_wrong
from dualform.store.reading.snapshot import Snapshot
from tests.deletion.test_rewrite import write
from tests.record.resumed_training import Training
from tests.store.small_memory import batches_of

WHERE = "sample < 6"


class Killed(BaseException):
    """The process ends."""


def samples(path: Path) -> list[int]:
    return Snapshot.open(path).column("sample", "sample").tolist()


def test_killed_at_any_moment_it_is_one_or_the_other(tmp_path, monkeypatch):
    """At every file that is renamed into place, and at every piece of the old memory that is removed."""
    batches = batches_of([5, 5])
    write(tmp_path / "whole", batches)
    old = samples(tmp_path / "whole")
    new = [sample for sample in old if sample >= 6]
    assert new
    assert len(new) < len(old)
    seen = set()
    for last in range(100):
        path, left = tmp_path / f"at {last}", [last]
        shutil.copytree(tmp_path / "whole", path)
        with monkeypatch.context() as patch:
            _end_after(patch, left)
            try:
                dualform.delete(path, WHERE)
                break
            except Killed:
                pass
        found = samples(path)
        assert found in (old, new), last
        assert what_is_wrong(path) == []
        seen.add(found == new)
        path.joinpath("weights", "best.safetensors").write_bytes(b"somebody's own")
        if found == new:
            assert "may hold deleted samples" in check_memory(path)[0]
        elif last % 8:
            continue
        with suppress(EmptyMask):
            dualform.delete(path, WHERE)
        assert samples(path) == new
        assert check_memory(path) == []
        assert path.joinpath("weights", "best.safetensors").exists()
        assert sorted(own.name for own in path.iterdir() if own.name.startswith("shard-")) == ["shard-00000-1"]
    assert seen == {True, False}


def _end_after(patch: pytest.MonkeyPatch, left: list[int]) -> None:
    """End the process after so many renames and removals, or in the middle of the next one."""

    def ending(module, name):
        real = getattr(module, name)

        def counted(*arguments, **named):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments, **named)

        patch.setattr(module, name, counted)

    ending(os, "replace")
    ending(delete, "remove_leftovers")
    patch.setattr(delete, "_remove", lambda made: None)  # nobody is left to clean up


def test_where_the_new_memory_is_not_sound_the_old_one_stays(tmp_path, monkeypatch):
    write(tmp_path / "memory", batches_of([5, 5]))
    before = {file: file.read_bytes() for file in (tmp_path / "memory").rglob("*") if file.is_file()}
    monkeypatch.setattr(delete, "what_is_wrong", lambda path: ["made up"])
    with pytest.raises(
        Damaged, match="The memory without these samples did not pass its check, so the old one was kept:"
    ):
        dualform.delete(tmp_path / "memory", WHERE)
    after = {file: file.read_bytes() for file in (tmp_path / "memory").rglob("*") if file.is_file()}
    assert after == before


def test_two_at_once_are_refused(tmp_path):
    write(tmp_path / "memory", batches_of([5]))
    handle = os.open(tmp_path / "memory", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(Locked, match="another process deletes"):
        dualform.delete(tmp_path / "memory", WHERE)
    os.close(handle)


@pytest.mark.parametrize("asked", [False, True])
def test_a_memory_that_was_open_meanwhile_says_so(tmp_path, asked):
    write(tmp_path / "memory", batches_of([5, 5]))
    with dualform.open(tmp_path / "memory") as memory:
        if asked:
            memory.topk("layer-1", np.ones((1, 5), np.float32), k=1)
        dualform.delete(tmp_path / "memory", WHERE)
        with pytest.raises(Damaged, match=r"were deleted since it was opened\. Open it again\."):
            memory.slots([0])
        with pytest.raises(Damaged, match=r"were deleted since it was opened\. Open it again\."):
            memory.keys("layer-0", [0])
        (tmp_path / "memory" / "shard-00000-1" / "slots.duckdb").unlink()
        with pytest.raises(Damaged, match="were deleted since it was opened"):
            memory.values("layer-0", [0])


def saved(folder: Path) -> Training:
    """A training of six steps, as loaded from its checkpoint after four."""
    Training().run(folder / "run", 6, saved=(4,), checkpoint=folder / "checkpoint.pt")
    training = Training()
    training.load(folder / "checkpoint.pt")
    return training


def test_a_run_does_not_begin_where_samples_were_deleted_since_its_recorder_was_made(tmp_path):
    training, path = saved(tmp_path), tmp_path / "run"
    recorder = training.recorder(path, resume=True)
    dualform.delete(path, "sample = 8")
    with pytest.raises(RecordingError, match=r"samples were deleted"), recorder:
        training.step(recorder)
    assert not list(path.glob("run-*"))
    assert check_memory(path) == []
    assert dualform.open(path).verify()["0"].exact


def test_nothing_is_deleted_while_a_run_is_put_on_disk(tmp_path, monkeypatch):
    training, path, real = saved(tmp_path), tmp_path / "run", StepWriter.begin

    def begin(*arguments):
        real(*arguments)
        with pytest.raises(Locked, match="or starts to record into it"):
            dualform.delete(path, "sample = 3")

    monkeypatch.setattr(StepWriter, "begin", begin)
    training.run(path, 8, resume=True)
    assert check_memory(path) == []
    memory = dualform.open(path)
    assert memory.info().steps == 8
    assert memory.verify()["0"].exact
