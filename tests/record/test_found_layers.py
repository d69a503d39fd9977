"""Matrices that a module multiplies by itself are layers."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import dualform
from tests.cases import some
from tests.record.products import B, Checkpointed, D, Tied, Turned, matrix, one_step, opened_on
from tests.trainings import learn


class Products(nn.Module):
    """A product of each kind, one after another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.right, self.left, self.added = matrix(9, D), matrix(D, 3), matrix(D, 3), matrix(D, D)
        self.weight, self.bias, self.shift = matrix(6, D), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(D))
        self.halves = matrix(D, 6)
        self.listed = nn.ParameterList([matrix(2, D)])
        self.last = nn.Linear(2, 1)

    def forward(self, numbers):
        x = functional.embedding(numbers, self.rows, padding_idx=0)
        x = torch.tanh(x @ self.right)
        x = (self.left @ x.T).T
        x = torch.tanh(torch.addmm(self.shift, x, self.added))
        x = torch.relu(functional.linear(x, weight=self.weight, bias=self.bias))
        x = x[:, :3] @ self.halves[:, :3].T + functional.linear(x[:, 3:], self.halves[:, 3:])
        return self.last(x.matmul(self.listed[0].mT))


LAYERS = {
    "rows": ("rows", 9, D), "right": ("right", D, 3), "left": ("left", 3, D), "added": ("added", D, D),
    "weight": ("weight", D, 6), "halves[:, 0:3]": ("halves", 3, D), "halves[:, 3:6]": ("halves", 3, D),
    "listed.0": ("listed.0", D, 2), "last": ("last.weight", 2, 1),
}  # fmt: skip


def train(model, inputs, recorder=None, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    made, gradients = recorder(model, optimizer) if recorder else None, []
    with made or nullcontext():
        for _ in range(steps):
            with made.step(label=np.arange(len(inputs))) if made else nullcontext():
                learn(
                    optimizer,
                    model(inputs).square().sum(),
                    lambda: gradients.append([p.grad.clone() for p in model.parameters()]),
                )
        if made:
            made.query_set("test", inputs)
    return gradients


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model, numbers = Products(), torch.tensor([3, 0, 8, 3, 1])
    alone = train(copy.deepcopy(model), numbers)
    path = tmp_path_factory.mktemp("products") / "m"
    recorded = train(model, numbers, lambda *both: dualform.Recorder(*both, path))
    with dualform.open(path) as memory:
        yield model, memory, alone, recorded


def test_each_kind_of_product_is_a_layer(trained):
    _, memory, _, _ = trained
    assert {x.name: (x.d_in, x.d_out) for x in memory.info().layers} == {
        name: sizes for name, (_, *sizes) in LAYERS.items() for sizes in [tuple(sizes)]
    }
    assert {x.name: x.space for x in memory.info().layers} == dict.fromkeys(LAYERS, "sample")
    assert memory.info().skipped == {}


def test_no_bit_of_a_gradient_changes(trained):
    _, _, alone, recorded = trained
    for before, now in some(zip(alone, recorded, strict=True)):
        assert all(torch.equal(*pair) for pair in zip(before, now, strict=True))


def test_keys_and_values_make_the_gradients(trained):
    model, memory, _, recorded = trained
    first = dict(zip([name for name, _ in model.named_parameters()], recorded[0], strict=True))
    for layer in some(memory.info().layers):
        keys, values = memory.keys(layer.name)[:B], memory.values(layer.name)[:B]
        gradient = values.T.astype(np.float64) @ keys
        own = first[LAYERS[layer.name][0]].numpy()
        own = own[:, :3] if "0:3" in layer.name else own[:, 3:] if "3:6" in layer.name else own
        np.testing.assert_allclose(gradient, own if gradient.shape == own.shape and layer.name != "added" else own.T,
                                   rtol=1e-5, atol=1e-6, err_msg=layer.name)  # fmt: skip
    for bias, layer in (("bias", "weight"), ("shift", "added")):
        np.testing.assert_allclose(memory.values(layer)[:B].sum(0), first[bias], rtol=1e-5, atol=1e-6)


def test_the_record_rebuilds_every_parameter(trained):
    model, memory, _, _ = trained
    assert all(found.reconstruction_error <= 1e-5 for found in memory.verify().values())
    weights = memory.weights()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach(), atol=2e-6, err_msg=name)


def test_a_query_set_has_queries_of_all_of_them_and_outputs_are_the_networks(trained):
    model, memory, _, _ = trained
    queries = {
        name: torch.from_numpy(memory.query_set("test", layer=name).queries) for name in LAYERS if name != "rows"
    }
    x = torch.relu(queries["weight"] @ model.weight.T + model.bias)
    np.testing.assert_allclose(queries["halves[:, 3:6]"], x[:, 3:].detach(), atol=1e-5)
    np.testing.assert_allclose(np.maximum(memory.output("weight", queries["weight"].numpy()), 0), x.detach(), atol=1e-5)
    left = (queries["left"] @ model.left.T).detach()
    np.testing.assert_allclose(memory.output("left", queries["left"].numpy()), left, atol=1e-5)


def test_tied_products_count_once_each(tmp_path):
    model = Tied()
    train(model, torch.randn(B, D), lambda *both: dualform.Recorder(*both, tmp_path / "m"))
    with dualform.open(tmp_path / "m") as memory:
        assert [layer.name for layer in memory.info().layers] == ["inner", "weight", "weight.2"]
        assert [layer.slots for layer in memory.info().layers] == [3 * B] * 3
        assert max(found.reconstruction_error for found in memory.verify().values()) <= 1e-5


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Checkpointed(inside=False)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_a_checkpoint_around_the_module_is_recorded_and_one_inside_its_forward_is_named(tmp_path):
    x = torch.randn(B, D)
    around, inside = Around(), Checkpointed(inside=True)
    train(around, x, lambda *both: dualform.Recorder(*both, tmp_path / "around"))
    alone = train(copy.deepcopy(inside), x)
    recorded = train(inside, x, lambda *both: dualform.Recorder(*both, tmp_path / "inside"))
    for before, now in zip(alone, recorded, strict=True):
        assert all(torch.equal(*pair) for pair in zip(before, now, strict=True))
    with dualform.open(tmp_path / "around") as memory:
        assert {x.name: x.slots for x in memory.info().layers} == {"inner.head": 3 * B, "inner.weight": 6 * B}
        assert max(found.reconstruction_error for found in memory.verify().values()) <= 1e-5
    with dualform.open(tmp_path / "inside") as memory:
        assert "a checkpoint inside its module's forward" in memory.info().skipped["weight"]


class Both(nn.Module):
    """A tied head, experts of a kind, and attention, all of which multiply without calling a module of torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.tied, self.attention = (
            nn.Embedding(7, D),
            Tied(),
            nn.MultiheadAttention(D, 2, batch_first=True),
        )
        self.head = Turned(self.embed.weight)

    def forward(self, words):
        x = self.tied(self.embed(words))
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


def test_two_recorders_of_one_model_see_the_same(tmp_path):
    model, words = Both(), torch.arange(10).view(5, 2) % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outer, inner = (dualform.Recorder(model, optimizer, tmp_path / name) for name in ("outer", "inner"))
    with outer, inner:
        for number in range(3):
            with outer.step(), inner.step() if number != 1 else nullcontext():
                learn(optimizer, model(words).square().sum())
    with dualform.open(tmp_path / "outer") as one, dualform.open(tmp_path / "inner") as other:
        assert (outer.skipped, inner.skipped) == ({}, {})
        assert [x.name for x in one.info().layers] == [x.name for x in other.info().layers]
        assert {"head.weight", "tied.weight.2", "attention.q"} <= {x.name for x in one.info().layers}
        assert max(found.reconstruction_error for found in one.verify().values()) <= 1e-5
        for layer in other.info().layers:
            keys, values = one.keys(layer.name), one.values(layer.name)
            step = one.slots(np.arange(len(keys)), layer.space)["step"] != 1
            np.testing.assert_array_equal(other.keys(layer.name), keys[step])
            np.testing.assert_array_equal(other.values(layer.name), values[step])


def test_names_and_patterns_choose_among_them(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m", layers=["weight.2"], spaces={"weight.?": "second"})
    with opened.recorder:
        one_step(opened, model, torch.randn(B, D))
    assert {layer.name: layer.space for layer in opened.sink.layers} == {"weight.2": "second"}
    assert opened.recorder.skipped == {"inner": "layers= leaves it out", "weight": "layers= leaves it out"}


def test_an_interrupted_first_step_leaves_nothing_behind(tmp_path):
    model = Products()
    opened = opened_on(model, tmp_path / "m")
    numbers = torch.tensor([1, 2, 3])
    with opened.recorder:
        with pytest.raises(IndexError):
            one_step(opened, model, numbers + 9)
        one_step(opened, model, numbers)
    assert sorted(opened.sink.layer_names) == sorted(LAYERS)
    assert torch._C._len_torch_function_stack() == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
