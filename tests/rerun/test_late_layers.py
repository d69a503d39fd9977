"""Layers that are first called after the first step are run again as the others are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, TopK, Vectors
from dualform.errors import RecordingError
from dualform.rerun.rerun import Rerun
from tests.cases import some
from tests.trainings import take_steps

STEPS = 8


class Heads(nn.Module):
    """Two heads in turns, and one that no early step reaches."""

    def __init__(self, late=3):
        super().__init__()
        self.trunk, self.first = nn.Linear(4, 5), nn.Linear(5, 3)
        self.second, self.late = nn.Linear(5, 2), nn.Linear(5, late)

    def forward(self, x, step):
        hidden = torch.tanh(self.trunk(x))
        loss = (self.second if step % 2 else self.first)(hidden).square().mean()
        return loss + self.late(hidden).square().mean() if step > 4 else loss


def run(make, turn=0, stays=True):
    """Train under make(model, optimizer). `turn`: by how many steps the heads change earlier; `stays`: the late head's
    turn comes at all."""
    torch.manual_seed(0)
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with make(model, optimizer) as recorder:
        take_steps(
            recorder,
            optimizer,
            ((step, torch.randn(6, 4)) for step in range(STEPS)),
            lambda step, x: model(x, min(step + turn, STEPS if stays else 4)),
            label=torch.arange(6) % 3,
        )
    return recorder


def questions():
    rng = np.random.default_rng(0)
    for layer, width in (("trunk", 4), ("first", 5), ("second", 5), ("late", 5)):
        queries = Vectors(rng.normal(size=(2, width)).astype(np.float32))
        yield TopK(layer, queries, k=4, where="label <> 1")
        yield GroupSum(layer, queries, by=("label", "step"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("late") / "m"
    run(lambda *of: dualform.Recorder(*of, path, keys=False))
    return path


def test_the_answers_are_those_of_stored_keys(folder, tmp_path):
    run(lambda *of: dualform.Recorder(*of, tmp_path / "stored"))
    asked = list(questions())
    answers = run(lambda *of: Rerun(*of, folder, asked)).answers()
    with dualform.open(tmp_path / "stored") as stored:
        for question, found in some(zip(asked, answers, strict=True)):
            wanted = stored.ask(question)
            if isinstance(question, TopK):
                assert (found.ids.tolist(), found.flat_scores.tolist()) == (
                    wanted.ids.tolist(),
                    wanted.flat_scores.tolist(),
                )
            else:
                assert (found.groups, found.counts.tolist()) == (wanted.groups, wanted.counts.tolist())
                np.testing.assert_allclose(found.sums, wanted.sums, rtol=1e-12)


def test_a_layer_that_comes_at_another_time_is_refused(folder):
    with pytest.raises(RecordingError) as caught:
        run(lambda *of: Rerun(*of, folder, list(questions())), turn=1)
    assert str(caught.value).startswith("step 0: layer 'first' (5 to 3, by sample) is recorded in only one")
    with pytest.raises(RecordingError) as caught:
        run(lambda *of: Rerun(*of, folder, list(questions())), stays=False)
    assert str(caught.value).startswith("step 5, layer ")
