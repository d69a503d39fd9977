"""What an estimate says that a budget would keep, beside what a recording with that budget then kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.costs.estimate import Forecast
from dualform.errors import BadInput

MB = 10**6
ROWS, WIDTH, STEPS = 512, 400, 36


class Own(nn.Module):
    """A layer, and a parameter of none, of which a row is kept at each step."""

    def __init__(self, beside):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.beside = nn.Linear(WIDTH, 4), nn.Parameter(torch.ones(beside))

    def forward(self, x):
        return self.layer(x) * self.beside[:4]


def training(path, beside=4, **options):
    def train(record=dualform.Recorder):
        model = Own(beside)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(0)
        with record(model, optimizer, path, quiet=True, **options) as recorder:
            for _ in range(STEPS):
                x, y = torch.randn(ROWS, WIDTH, generator=generator), torch.randint(4, (ROWS,), generator=generator)
                with recorder.step(label=y):
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()

    return train


def test_it_is_what_a_recording_then_keeps(tmp_path):
    beside, budget = 1 << 17, 40 * MB  # half a MiB a step of a parameter of no layer
    told = dualform.estimate(training(tmp_path / "m", beside), STEPS, tried=6, budget=budget)
    for options, found in (({"steps": STEPS}, told.planned), ({}, told.unplanned)):
        path = tmp_path / f"m {len(options)}"
        training(path, beside, budget=budget, **options)()
        with dualform.open(path) as memory:
            lacking = memory.sql("SELECT min(step) AS step FROM shares WHERE kept < slots")["step"][0]
            share = memory.info().slots["sample"] / (STEPS * ROWS)
            assert found.steps == memory.info().steps == STEPS
            assert found.first_step == pytest.approx(lacking, abs=2)
            assert found.share == pytest.approx(share, rel=0.05)  # lots
    assert told.planned.first_step == 0
    assert 5 < told.unplanned.first_step < STEPS - 5
    assert f"  steps={STEPS}: {100 * told.planned.share:.3g} % of the slots, from the first step on" in str(told)
    assert f"% of the slots, all of them before step {told.unplanned.first_step}" in str(told)
    assert told.to_json()["budget"]["planned"] == vars(told.planned)
    assert told.to_json()["budget"]["bytes"] == budget


def test_a_budget_that_holds_all_and_one_that_the_recorder_refuses(tmp_path):
    told = dualform.estimate(training(tmp_path / "m"), 10**7, tried=3, budget="100 TB")
    assert told.planned == told.unplanned == Forecast(1.0, None, 10**7)
    assert "within 100 TB:\n  steps=10000000: all slots\n  without steps=: all slots" in str(told)
    assert "budget" not in dualform.estimate(training(tmp_path / "m"), 8, tried=3).to_json()
    with pytest.raises(BadInput, match="budget=5 MB is too small") as refused:
        dualform.estimate(training(tmp_path / "m"), 80, tried=3, budget="5 MB")
    assert refused.value.field == "budget"


def test_a_budget_that_logs_alone_use_up(tmp_path):
    told = dualform.estimate(training(tmp_path / "m"), 10**6, tried=3, budget="30 MB")
    assert told.planned.steps < 10**6
    assert f"; recording ends after {told.planned.steps:,} steps" in str(told)
