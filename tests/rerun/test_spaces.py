"""A training whose spaces were named, and whose rows the model chose, is run again with the same arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, TopK, Vectors
from dualform.errors import RecordingError
from dualform.rerun.rerun import Rerun
from dualform.store.layer import affine
from tests.record.product_tap import Product

from .test_same_answers import assert_same

STEPS, ROWS = 6, 5


class Model(nn.Module):
    """An encoder and a decoder over tokens of other lengths, an expert that sees the rows it chooses, and a tap."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.expert = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.scorer = nn.Parameter(torch.randn(2, 4))
        (place,) = affine(4, "scorer", None)
        self.tap = Product("scorer", 4, 2, {place: self.scorer})  # a weight that is no module's


def run(make):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make(model, optimizer) as recorder:
        for step in range(STEPS):
            source, target = torch.randn(ROWS, 3, 4), torch.randn(ROWS, 2, 4)
            words = {"word": torch.arange(ROWS * 2).reshape(ROWS, 2) % 3}
            with recorder.step(label=torch.arange(ROWS) % 2, at={"target": words}) as told:
                optimizer.zero_grad()
                rows = torch.arange(ROWS)[step % 2 :: 2]
                told.at("expert", row=rows, label=rows % 2)
                hidden = torch.tanh(model.encoder(source)).mean(1)
                loss = model.expert(hidden[rows]).square().sum() + model.tap(hidden, model.scorer).square().sum()
                (loss + model.decoder(target).square().sum()).backward()
                optimizer.step()
    return recorder


def options(model):
    return {"spaces": {"encoder": "source", "decoder": "target"}, "routed": "expert", "taps": [model.tap]}


def questions():
    queries = Vectors(np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32))
    yield TopK("decoder", queries, k=4, where="word <> 1")
    yield GroupSum("decoder", queries, by=("label", "position"))
    for layer in ("encoder", "expert", "scorer"):
        yield TopK(layer, queries, k=3, by=("label",))
        yield GroupSum(layer, queries, by=("label", "step"))


def test_its_answers_are_those_of_stored_keys(tmp_path):
    run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "kept", **options(model)))
    run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "m", keys=False, **options(model)))
    asked = list(questions())
    reran = run(lambda model, optimizer: Rerun(model, optimizer, tmp_path / "m", asked, **options(model)))
    kept = dualform.open(tmp_path / "kept")
    assert {layer.name: layer.space for layer in kept.info().layers} == {
        "encoder": "source", "decoder": "target", "expert": "expert", "scorer": "sample",
    }  # fmt: skip
    for question, found in zip(asked, reran.answers(), strict=True):
        assert_same(found, kept.ask(question))


@pytest.mark.parametrize("missing", ["spaces", "routed"])
def test_without_the_same_arguments_it_is_refused(tmp_path, missing):
    run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "m", keys=False, **options(model)))

    def rerun(model, optimizer):
        given = {name: value for name, value in options(model).items() if name != missing}
        return Rerun(model, optimizer, tmp_path / "m", list(questions()), **given)

    with pytest.raises(RecordingError, match=r"is recorded in one run and not in the other|saw different batches"):
        run(rerun)
