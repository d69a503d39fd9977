"""`dualform.tap` makes a layer of a product in a forward pass of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.record.taps.matrix import LISTENING
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory
from tests.trainings import take_steps

from .listed import Opened

B, D, WORDS = 5, 4, 7


class Tied(nn.Module):
    """Words are looked up and predicted by one matrix, which is a layer's own parameter."""

    def __init__(self, name="head"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.name = nn.Embedding(WORDS, D), name
        self.pair = nn.Parameter(torch.randn(2, D, D))

    def forward(self, words):
        x = dualform.tap(self.embedding(words), self.pair[1], "second")
        return dualform.tap(torch.tanh(x), self.embedding.weight, self.name)


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), path, **options)


def steps(opened, model, count=3):
    generator = torch.Generator().manual_seed(1)
    take_steps(
        opened.recorder,
        opened.optimizer,
        (torch.randint(WORDS, (B,), generator=generator) for _ in range(count)),
        lambda words: model(words).square().sum(),
        label=np.arange(B),
    )


def test_without_a_recorder_it_is_the_product_alone():
    x, weight = torch.randn(B, D), nn.Parameter(torch.randn(3, D))
    assert torch.equal(dualform.tap(x, weight, "any"), nn.functional.linear(x, weight))
    assert LISTENING == []


def test_each_name_is_a_layer_whose_record_is_exact(tmp_path):
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")
    generator = torch.Generator().manual_seed(1)
    with recorder:
        take_steps(
            recorder,
            optimizer,
            (torch.randint(WORDS, (B,), generator=generator) for _ in range(3)),
            lambda words: model(words).square().sum(),
            label=np.arange(B),
        )
    with dualform.open(tmp_path / "m") as memory:
        sizes = {layer.name: (layer.d_in, layer.d_out, layer.slots) for layer in memory.info().layers}
        assert sizes == {"embedding": (WORDS, D, 15), "second": (D, D, 15), "head": (D, WORDS, 15)}
        assert max(found.reconstruction_error for found in memory.verify().values()) <= 1e-5
        weights = memory.weights()
        np.testing.assert_allclose(weights["embedding.weight"], model.embedding.weight.detach(), atol=2e-6)
        np.testing.assert_allclose(weights["pair"], model.pair.detach(), atol=2e-6)
    assert LISTENING == []


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (lambda model: model.embedding.weight * 2, "its matrix is neither a parameter of the model nor a view of one"),
        (
            lambda model: nn.Parameter(torch.ones(3, D)),
            "its matrix is neither a parameter of the model nor a view of one",
        ),
        (lambda model: model.embedding.weight[::2], "its matrix is not a block of embedding.weight"),
    ],
    ids=["computed", "of no model", "every other row"],
)
def test_a_matrix_that_is_no_part_of_a_parameter_is_named(tmp_path, weight, why):
    model = Tied()
    model.forward = lambda words: dualform.tap(model.embedding(words), weight(model), "other")
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
    assert opened.recorder.skipped["other"] == why


def test_a_name_that_another_layer_has_is_told_of(tmp_path):
    model = Tied(name="embedding")
    opened = opened_on(model, tmp_path / "m")
    with (
        opened.recorder,
        pytest.warns(RuntimeWarning, match="^embedding was recorded by hand under the name of another layer"),
    ):
        steps(opened, model, 1)
    assert opened.sink.layer_names == ["embedding", "second"]
    assert len(opened.sink.keys("embedding")) == B


def test_another_matrix_by_the_same_name_is_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
        model.forward = lambda words: dualform.tap(model.embedding(words), model.pair[0], "second")
        with pytest.warns(RuntimeWarning, match="^second was recorded by hand with another matrix than at first"):
            steps(opened, model, 1)
    assert len(opened.sink.parts("second")) == 1


def test_a_name_that_is_first_told_later_is_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
        model.name = "late"
        with pytest.warns(RuntimeWarning, match="^late was first recorded by hand after the first step"):
            steps(opened, model, 1)
    assert opened.sink.layer_names == ["embedding", "second", "head"]


@pytest.mark.parametrize("name", ["..", "x" * 236, "x" * 237, "a/b\\c:d", "\0", "CON "])
def test_a_layer_may_have_any_name(tmp_path, name):
    model = Tied(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    words, spaces = torch.arange(B), {"embedding": "sample"}
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m", spaces=spaces, quiet=True)
    with recorder:
        take_steps(recorder, optimizer, 2, lambda _: model(words).square().sum(), label=np.arange(B))
        recorder.query_set("test", words, label=np.arange(B))
    with dualform.open(tmp_path / "m") as memory:
        assert len(memory.topk(name, "test", k=2).slots[0]) == 2
        assert memory.verify()[name].exact
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    assert len(list((tmp_path / "m" / "shard-00000" / "layers").iterdir())) == 3
    copy_memory(tmp_path / "m", tmp_path / "copy")
    dualform.delete(tmp_path / "copy", "label = 1")
    for path in ("m", "copy"):
        assert check_memory(tmp_path / path) == []
    with dualform.open(tmp_path / "copy") as memory:
        assert len(memory.topk(name, np.ones((1, D), np.float32), k=2).slots[0]) == 2


@pytest.mark.parametrize("name", [None, 7, "\ud800"])
def test_a_name_that_is_no_text_is_refused(name):
    x, weight = torch.randn(B, D), nn.Parameter(torch.randn(3, D))
    with pytest.raises(dualform.errors.BadInput, match="cannot name a layer"):
        dualform.tap(x, weight, name)
