"""Embeddings and convolutions are run again as linear layers are."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, TopK
from tests.trainings import take_steps


def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.randint(0, 9, (5, 6, 7))


def images():
    convolution = nn.Conv2d(2, 3, 3, padding=1)
    return nn.Sequential(convolution, nn.Flatten(2), nn.Linear(20, 3)), torch.randn(5, 6, 2, 4, 5)


@pytest.mark.parametrize("made", [words, images])
def test_a_rerun_has_the_stored_memorys_answers(made, tmp_path):
    def run(recorder):
        torch.manual_seed(0)
        model, batches = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recorder(model, optimizer) as recording:
            take_steps(recording, optimizer, batches, lambda x: model(x).square().sum(), sample=np.arange(6))
        return recording

    run(lambda *of: dualform.Recorder(*of, tmp_path / "stored"))
    run(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False))
    with dualform.open(tmp_path / "stored") as stored:
        queries = np.abs(stored.keys("0")[:3]) + np.float32(0.5)
        questions = [TopK("0", queries, k=5), GroupSum("0", queries, by=("position",))]
        hits, sums = run(lambda *of: dualform.Rerun(*of, tmp_path / "m", questions)).answers()
        expected = stored.topk("0", queries, k=5)
        assert np.array_equal(hits.ids, expected.ids)
        assert hits.flat_scores.tobytes() == expected.flat_scores.tobytes()
        assert sums.sums.tobytes() == stored.group_sum("0", queries, by="position").sums.tobytes()
