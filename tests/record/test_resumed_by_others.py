"""A training that is resumed where another one may be meant: by several processes, or before the weights moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import AlreadyExists
from dualform.store.manifest import Manifest
from tests.record.resumed_training import Training
from tests.trainings import learn


def test_a_further_run_is_told_that_another_one_took_its_place(tmp_path):
    """Two processes load one checkpoint, and each goes on from it."""
    first = Training()
    with first.recorder(tmp_path / "m") as recorder:
        for _ in range(2):
            first.step(recorder)
        recorder.flush()
        first.save(tmp_path / "after")

    def train(training):
        with training.recorder(tmp_path / "m", resume=True) as recorder:
            training.step(recorder)
            recorder.flush()
            other = Training()
            other.load(tmp_path / "after")
            other.run(tmp_path / "m", 5, resume=True)
            training.step(recorder)
            recorder.flush()

    training = Training()
    training.load(tmp_path / "after")
    with pytest.raises(AlreadyExists, match="another one resumed the training"):
        train(training)
    assert [run.folder for run in Manifest.read(tmp_path / "m").runs] == ["run-00002"]
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 5
        assert all(reconstruction.exact for reconstruction in memory.verify().values())


def test_a_moment_before_the_weights_moved_is_that_of_every_training_that_begins_with_them(tmp_path):
    """What was recorded before it brought nothing, so that the record of whoever goes on from it adds up."""

    def train(seed, rates, **options):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        generator = torch.Generator().manual_seed(seed)
        with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, **options) as recorder:
            for rate in rates:
                optimizer.param_groups[0]["lr"] = rate
                with recorder.step(sample=torch.arange(3) + 100 * seed):
                    learn(optimizer, model(torch.randn(3, 4, generator=generator)).square().sum())
                recorder.flush()
        return model

    train(1, [0.0, 0.1])
    model = train(2, [0.1, 0.1], resume=True)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.slots(range(9))["sample"].tolist() == [100, 101, 102, 200, 201, 202, 200, 201, 202]
        assert memory.coefficients("", range(3)).tolist() == [0.0] * 3
        assert all(reconstruction.exact for reconstruction in memory.verify().values())
        np.testing.assert_allclose(memory.weights()["weight"], model.weight.detach(), atol=1e-6)
