"""Embeddings, convolutions and recurrent layers are run again as linear layers are."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, TopK
from tests.cases import some
from tests.trainings import take_steps

from .test_same_answers import assert_same


class Last(nn.Module):
    """A recurrent layer's outputs, without its state."""

    def __init__(self, kind):
        super().__init__()
        self.inner = kind(5, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.randint(0, 9, (5, 6, 7)), "0"


def images():
    convolution = nn.Conv2d(2, 3, 3, padding=1)
    return nn.Sequential(convolution, nn.Flatten(2), nn.Linear(20, 3)), torch.randn(5, 6, 2, 4, 5), "0"


def lstm():
    return nn.Sequential(Last(nn.LSTM), nn.Linear(4, 3)), torch.randn(5, 6, 7, 5), "0.inner"


def gru():
    return nn.Sequential(Last(nn.GRU), nn.Linear(4, 3)), torch.randn(5, 6, 7, 5), "0.inner.gates"


@pytest.mark.parametrize("made", [words, images, lstm, gru])
def test_a_rerun_has_the_stored_memorys_answers(made, tmp_path):
    def run(recorder):
        torch.manual_seed(0)
        model, batches, _ = made()
        optimizer = torch.optim.Adam(model.parameters())
        with recorder(model, optimizer) as recording:
            take_steps(recording, optimizer, batches, lambda x: model(x).square().sum(), sample=np.arange(6))
        return recording

    run(lambda *of: dualform.Recorder(*of, tmp_path / "stored"))
    run(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False))
    layer = made()[2]
    with dualform.open(tmp_path / "stored") as stored:
        queries = np.abs(stored.keys(layer)[:3]) + np.float32(0.5)
        questions = [TopK(layer, queries, k=5), GroupSum(layer, queries, by=("position",))]
        answers = run(lambda *of: dualform.Rerun(*of, tmp_path / "m", questions)).answers()
        for question, found in some(zip(questions, answers, strict=True)):
            assert_same(found, stored.ask(question))
