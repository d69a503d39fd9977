"""What deleted samples looked like is deleted with them; what others looked like stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dualform
from dualform import PreviewSet
from dualform.deletion.delete import planned_deletion
from dualform.errors import NotFound
from dualform.store.maintenance.check import check_memory, leftovers
from tests.record.resumed_training import Training
from tests.record.test_previews import Small
from tests.trainings import take_steps


def record(path: Path, *steps: tuple[str | None, list[int] | None]) -> None:
    """A step of each dataset and samples, each with a preview set of twenty texts that name it."""
    training = Small(path)
    with training.recorder as recorder:
        take_steps(
            recorder,
            training.optimizer,
            ((dataset, samples, torch.arange(4)) for dataset, samples in steps),
            lambda dataset, samples, index: training.model(training.inputs[index]).sum(),
            dataset=lambda dataset, samples, index: dataset,
            sample=lambda dataset, samples, index: samples,
        )
        for dataset in {dataset for dataset, _ in steps}:
            recorder.previews(dataset, PreviewSet.texts([f"{dataset} secret {number}." for number in range(20)]))


def bytes_in(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_what_only_they_looked_like_is_gone(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("b", [2, 3, 4, 5]), ("a", [2, 3, 4, 5]))
    told = planned_deletion(path, "dataset = 'a' AND step = 0")
    assert (told.shown, told.preview_sets) == ({"a": 1}, ())
    dualform.delete(path, "dataset = 'a' AND step = 0")
    with dualform.open(path) as memory:
        assert memory.previews([1, 2, 7], "a").texts == (None, "a secret 2.", "a secret 7.")
        assert memory.previews([1, 2], "b").texts == ("b secret 1.", "b secret 2.")
    content = bytes_in(path)
    assert b"a secret 1." not in content
    assert b"b secret 1." in content
    assert check_memory(path) == []
    assert leftovers(path) == []
    dualform.delete(path, "dataset = 'a' AND sample = 2")
    assert dualform.open(path).previews([1, 2, 3], "a").texts == (None, None, "a secret 3.")


def test_of_a_dataset_that_is_gone_no_preview_set_is_left(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), (None, [2, 3, 4, 5]))
    told = dualform.delete(path, "dataset IS NULL")
    assert (told.shown, told.preview_sets) == ({}, ("",))
    with dualform.open(path) as memory, pytest.raises(NotFound, match="no preview set for samples without a dataset"):
        memory.previews([2])
    assert b"None secret" not in bytes_in(path)
    assert b"a secret 2." in bytes_in(path)
    assert check_memory(path) == []


def test_where_samples_have_no_number_the_whole_preview_set_goes(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("a", None), ("b", [2, 3, 4, 5]))
    told = dualform.delete(path, "dataset = 'a' AND step = 1")
    assert told.preview_sets == ("a",)
    assert b"a secret" not in bytes_in(path)
    assert dualform.open(path).info().previews == {"b": "texts"}


def test_preview_sets_of_later_runs_lose_them_too(tmp_path):
    path = tmp_path / "run"
    Training().run(path, 6, saved=(4,), checkpoint=tmp_path / "checkpoint.pt")
    texts = [f"secret {number}." for number in range(20)]
    PreviewSet.texts(texts).store(path, "even")
    training = Training()
    training.load(tmp_path / "checkpoint.pt")
    with training.recorder(path, resume=True) as recorder:
        recorder.previews("even", PreviewSet.texts(texts))
        for _ in range(4):
            training.step(recorder)
    with dualform.open(path) as memory:
        found = memory.sql("SELECT sample FROM slots WHERE dataset = 'even' ORDER BY sample")["sample"]
    assert {3, 4} <= set(np.asarray(found).tolist())
    dualform.delete(path, "sample = 3")
    assert dualform.open(path).previews([3, 4], "even").texts == (None, "secret 4.")
    assert b"secret 3." not in bytes_in(path)
    assert check_memory(path) == []


def test_a_preview_set_that_loses_nothing_is_the_same_file(tmp_path):
    path = tmp_path / "m"
    record(path, ("a", [1, 2, 3, 4]), ("b", [2, 3, 4, 5]))
    before = {file: file.stat().st_ino for file in path.glob("gallery/b/*")}
    dualform.delete(path, "dataset = 'a' AND sample = 1")
    assert {file: file.stat().st_ino for file in path.glob("gallery/b/*")} == before
