"""What cannot be sampled is refused: keys of several samples, and a column with the name of the share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from tests.record.resumed_training import Training
from tests.record.sampled_training import (
    BUDGET,
)
from tests.trainings import record_steps


class Strip(nn.Module):
    """Images side by side in one map."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.Conv2d(1, 2, 1)

    def forward(self, x):
        return self.maps(x.permute(1, 2, 0)[None]).square().sum()


@pytest.mark.parametrize("keep", ["samples", "steps"])
def test_keys_of_several_samples_are_refused_at_the_first_step(tmp_path, keep):
    model = Strip()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(
        model, optimizer, tmp_path / "m", quiet=True, budget=BUDGET, keep=keep, routed="maps", spaces={"maps": "pixel"}
    )

    def train():
        record_steps(
            recorder,
            optimizer,
            1,
            lambda _: model(torch.randn(3, 1, 4)),
            at={"pixel": {"row": torch.arange(3).repeat(4)}},
            label=torch.arange(3),
        )

    if keep == "steps":
        train()
        assert dualform.open(tmp_path / "m").info().slots == {"pixel": 12}
    else:
        with pytest.raises(BadInput, match=r"'maps' stores one key for several samples.*keep=\"steps\""):
            train()


@pytest.mark.parametrize("said", [{"share": torch.full((3,), 0.5)}, {"at": {"token": {"share": torch.rand(3, 4)}}}])
def test_a_budget_has_the_column_share_for_itself(tmp_path, said):
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        recorder = dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=BUDGET)
        with recorder, recorder.step(**said):
            model(torch.randn(3, 4, 5)).square().sum().backward()

    with pytest.raises(BadInput, match="column 'share' is filled by a recorder with a budget") as refused:
        train()
    assert (refused.value.field, refused.value.hint) == ("share", "Rename yours.")


@pytest.mark.parametrize("said", [{"share": 0.5}, {"at": {"sample": {"share": torch.rand(3)}}}])
def test_a_column_of_the_training_s_own_is_no_share(tmp_path, said):
    Training().run(tmp_path / "budgeted", 2, budget=BUDGET)
    training = Training()
    with training.recorder(tmp_path / "own") as recorder, recorder.step(**said):
        training.model(torch.randn(3, 5)).square().sum().backward()
    with pytest.raises(BadInput, match=r"column 'share' was passed to step\(\) in .*own") as refused:
        dualform.open([tmp_path / "own", tmp_path / "budgeted"])
    assert "one by one" in refused.value.hint
