"""A training that is resumed while samples are deleted: neither takes files of the other's, or counts on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dualform
from dualform.errors import Locked, RecordingError
from dualform.record.batches import Batches
from dualform.store.maintenance.check import check_memory
from tests.record.resumed_training import Training


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
    training, path, real = saved(tmp_path), tmp_path / "run", Batches.begin

    def begin(*arguments):
        real(*arguments)
        with pytest.raises(Locked, match="or starts to record into it"):
            dualform.delete(path, "sample = 3")

    monkeypatch.setattr(Batches, "begin", begin)
    training.run(path, 8, resume=True)
    assert check_memory(path) == []
    memory = dualform.open(path)
    assert memory.info().steps == 8
    assert memory.verify()["0"].exact
