"""Recurrent layers are run again as linear ones are."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, TopK

from .trained import Training


class Last(nn.Module):
    """A recurrent layer's outputs, without its state."""

    def __init__(self, kind):
        super().__init__()
        self.inner = kind(5, 4, batch_first=True)
        self.decoder = nn.Linear(4, 3)

    def forward(self, x):
        return self.decoder(self.inner(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_has_the_stored_memorys_answers(kind, tmp_path):
    class Recurrent(Training):
        def built(self):
            torch.manual_seed(0)
            model = Last(kind)
            return model, torch.optim.Adam(model.parameters())

    training = Recurrent(steps=5, tokens=6)
    training.run(lambda *of: dualform.Recorder(*of, tmp_path / "stored"))
    training.run(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False))
    stored = dualform.open(tmp_path / "stored")
    inner = "inner" if kind is nn.LSTM else "inner.gates"
    assert stored.info().layers[0].name == inner
    questions = [TopK(inner, "test", k=5), GroupSum(inner, "test", by=("position",))]
    hits, sums = training.run(lambda *of: dualform.Rerun(*of, tmp_path / "m", questions)).answers()
    expected = stored.topk(inner, "test", k=5)
    assert np.array_equal(hits.ids, expected.ids)
    assert hits.flat_scores.tobytes() == expected.flat_scores.tobytes()
    assert sums.sums.tobytes() == stored.group_sum(inner, "test", by="position").sums.tobytes()
