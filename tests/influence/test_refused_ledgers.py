"""What has no ledger is refused, with what it is and what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, DualformError, Inexact, RecordingError
from tests.influence.trainings import (
    KINDS,
    labels,
    perceptron,
    samples,
    squares,
)
from tests.trainings import record_steps

STEPS = 12


def infinite(output, y):
    return squares(output, y) / torch.arange(len(y))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"loss": lambda o, y: squares(o, y).mean()},
            BadInput,
            r"The loss of .* must return one number for each of 5 examples, not \[\]\.",
        ),
        ({"loss": lambda o, y: y.double()}, BadInput, "does not depend on any parameter of the model."),
        ({"loss": infinite}, BadInput, "is (inf|nan) for example 0"),
        ({"labels": labels(99)[:4]}, BadInput, "has 5 examples but 4 labels."),
        ({"labels": None}, BadInput, "The labels of influence 'test' cannot be made a tensor: NoneType"),
        ({"labels": 3}, BadInput, "has 5 examples but 0 labels."),
        ({"by": "no such"}, DualformError, "no slot column 'no such'"),
        ({"by": ()}, BadInput, "by must name at least one column."),
        ({"method": "third-order"}, BadInput, "Unknown method 'third-order'"),
        ({"points": 0, "method": "path"}, BadInput, "points must be a whole number from 1 to 16, not 0"),
        ({"tail": 1.0}, BadInput, r"tail must be at least 0 and less than 1, not 1\.0"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, error, said):
    training = KINDS["linear layers"]
    training.record(tmp_path / "m", 2)
    with pytest.raises(error, match=said):
        dualform.ledger(tmp_path / "m", training.make(), replace(training.influence(), **change))


def test_another_model_is_refused(tmp_path):
    training = KINDS["linear layers"]
    training.record(tmp_path / "m", 2)
    with pytest.raises(BadInput, match="The model lacks '2'"):
        dualform.ledger(tmp_path / "m", nn.Sequential(nn.Linear(6, 7)), training.influence())
    with pytest.raises(BadInput, match=r"'0.bias' is \[7\] in the memory, and \[9\] in the model"):
        dualform.ledger(
            tmp_path / "m", nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)), training.influence()
        )


def test_rules_that_take_numbers_together_are_refused_with_the_reason(tmp_path):
    training = replace(KINDS["linear layers"], optimizer=lambda model: torch.optim.Adafactor(model.parameters()))
    training.record(tmp_path / "m", 2)
    with pytest.raises(
        Inexact,
        match=r"dualform\.ledger does not support Adafactor, which does not scale the gradient of "
        r"'0\.weight' number by number\.",
    ):
        dualform.ledger(tmp_path / "m", training.make(), training.influence())


class Placed(nn.Module):
    """Words and their places, of which a table has one row for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(12, 6), nn.Embedding(5, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x) + self.places(torch.arange(5))).mean(1))


def test_rows_that_examples_share_are_refused_and_one_example_is_followed(tmp_path):
    """There are as many places as examples."""
    training = replace(KINDS["LSTM and embedding"], make=Placed)
    training.record(tmp_path / "m", STEPS)
    influence = training.influence(method="path")
    with pytest.raises(BadInput, match="rows of layer 'places' do not belong to single examples"):
        dualform.ledger(tmp_path / "m", training.make(), influence)
    one = replace(influence, inputs=influence.inputs[:1], labels=influence.labels[:1])
    found = dualform.ledger(tmp_path / "m", training.make(), one)
    assert np.abs(found.residual).max() <= 1e-3 * np.abs(found.final - found.initial).max()


def test_a_model_that_is_being_recorded_is_refused(tmp_path):
    training = KINDS["linear layers"]
    model = training.record(tmp_path / "m", 2)
    with dualform.Recorder(model, training.optimizer(model), tmp_path / "n", quiet=True) as recorder:
        with recorder.step(sample=samples(0)):
            training.loss(model(training.inputs(0)), labels(0)).mean().backward()
        with pytest.raises(RecordingError, match="A recorder is open on this model"):
            dualform.ledger(tmp_path / "m", model, training.influence())


def test_a_memory_of_which_samples_were_deleted_is_refused(tmp_path):
    training = KINDS["linear layers"]
    training.record(tmp_path / "m", 2)
    dualform.delete(tmp_path / "m", "sample = 3")
    with pytest.raises(
        Inexact, match="Samples were deleted, so their effect is known only for the end of the training"
    ):
        dualform.ledger(tmp_path / "m", training.make(), training.influence())


def test_a_memory_without_values_is_refused(tmp_path):
    training = KINDS["linear layers"]
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, values=False),
        optimizer,
        2,
        lambda step: training.loss(model(training.inputs(step)), labels(step)).mean(),
        sample=lambda step: samples(step),
    )
    with pytest.raises(Inexact, match="no layer has values"):
        dualform.ledger(tmp_path / "m", perceptron(), training.influence())
