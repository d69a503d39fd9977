"""Sampling goes on where a training is resumed, and each of several ranks draws lots of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.setup.budget import Budget
from dualform.store.layer import ROWS_OF_A_RANK
from dualform.store.maintenance.check import what_is_wrong
from tests.record.resumed_training import ROWS as RESUMED_ROWS, Training
from tests.record.sampled_training import (
    BUDGET,
    SEED,
    drawn,
    picked,
    scripted,
)
from tests.record.test_ranks import ROWS as RANK_ROWS, Fleet, data
from tests.trainings import learn


def test_a_resumed_training_goes_on_with_the_share_it_had_and_the_lots_of_its_steps(tmp_path, monkeypatch):
    Training().run(tmp_path / "whole", 7)
    scripted(monkeypatch, 1.0, 1.0, 0.5)
    Training().run(tmp_path / "m", 5, (4,), tmp_path / "checkpoint", budget=BUDGET)
    monkeypatch.setattr(Budget, "share_of", lambda budget, slots, logs: budget.share)  # what it begins with
    again = Training()
    again.load(tmp_path / "checkpoint")
    again.run(tmp_path / "m", 7, budget=BUDGET, resume=True)
    with dualform.open(tmp_path / "m") as memory, dualform.open(tmp_path / "whole") as whole:
        entries = picked(whole, "sample", shares=(1.0, 1.0, *[0.5] * 5), seed=0)
        assert 2 * RESUMED_ROWS < len(entries) < 7 * RESUMED_ROWS
        assert memory.keys("0").tobytes() == whole.keys("0", entries).tobytes()
        assert memory.slots(range(len(entries)), "sample")["step"].tolist() == (
            whole.slots(entries, "sample")["step"].tolist()
        )
        assert memory.info().layers[0].status.since == 2
        assert memory.topk("0", np.ones((1, 5), np.float32)).scan.share == len(entries) / (7 * RESUMED_ROWS)
    with dualform.open([tmp_path / "whole", tmp_path / "m"]) as both:
        assert both.topk("0", np.ones((1, 5), np.float32)).scan.share == (7 * RESUMED_ROWS + len(entries)) / (
            14 * RESUMED_ROWS
        )
        assert "all of them before step 9" in both.info().sampling
        assert set(np.ma.filled(both.sql("SELECT share FROM samples")["share"], -1)) == {1.0, 0.5}
        assert both.topk("0", np.ones((1, 5), np.float32), where="share = 1").scan.slots_matching == 9 * RESUMED_ROWS


def test_ranks_draw_lots_of_their_own_and_share_the_budget(tmp_path, monkeypatch):
    def recorded(name, **options):
        fleet = Fleet(tmp_path / name)

        def train(rank, model, optimizer, recorder):
            for step in range(3):
                x, y = data(rank, step)
                with recorder.step(label=y, sample=100 * rank + torch.arange(RANK_ROWS)):
                    learn(optimizer, cross_entropy(model(x), y), lambda: fleet.average(rank, model))

        fleet.run(train, quiet=True, **options)
        return dualform.open(tmp_path / name)

    every = (1.0, 0.5, 0.25)
    scripted(monkeypatch, *every)
    with recorded("whole") as whole, recorded("m", budget=BUDGET, seed=SEED) as memory:
        column = whole.slots(range(whole.info().slots["sample"]), "sample")
        entries = []
        for slot, (step, sample) in enumerate(zip(column["step"].tolist(), column["sample"].tolist(), strict=True)):
            rank, row = divmod(sample, 100)
            if drawn(SEED, step, rank * ROWS_OF_A_RANK + row) < every[step]:
                entries.append(slot)
        assert memory.keys("0").tobytes() == whole.keys("0", entries).tobytes()
        assert memory.values("2").tobytes() == whole.values("2", entries).tobytes()
        assert memory.topk("0", np.ones((1, 5), np.float32)).scan.share == len(entries) / len(column["step"])
        assert "A budget of 500,000,000 bytes a process" in memory.info().sampling
        assert memory.info().layers[0].status.since == 1
        assert all(status.exact for status in memory.weights(at_step=1).statuses.values())
    assert not what_is_wrong(tmp_path / "m")
