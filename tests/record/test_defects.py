"""What the record cannot explain is marked, layer by layer, with the reason."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.trainings import learn, take_steps

from .listed import Opened, batches, small_net


def record(model, path, edit=None, count=3, forward=None, lr=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    opened = Opened(model, optimizer, path, **options)
    with opened.recorder:
        for x, y in batches(count):
            with opened.recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy((forward or model)(x), y).backward()
                if edit is not None:
                    edit(model)
                optimizer.step()
    return opened.sink


def by_layer(sink):
    return {layer: reason for layer, _, reason in reversed(sink.defects)}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.again(torch.tanh(self.again(self.first(x))))))


def test_a_layer_called_twice_has_slots_of_both_calls(tmp_path):
    torch.manual_seed(0)
    model = Twice()
    with torch.no_grad():
        first = model.first(batches(1)[0][0])
        second = torch.tanh(model.again(first))
    sink = record(model, tmp_path / "m", count=1)
    assert sink.defects == []
    assert [rows.call for _, rows in sink.parts("again")] == [0, 1]
    assert (sink.keys("again") == torch.cat([first, second]).numpy()).all()
    assert sink.column("call") == [0] * 8 + [1] * 8
    assert sink.column("row") == [*range(8)] * 2
    assert [len(sink.keys(name)) for name in ("first", "last")] == [8, 8]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_a_weight_shared_by_two_layers(tmp_path):
    sink = record(Tied(), tmp_path / "m")
    assert sink.layer_names == ["first", "second", "third"]
    assert sink.defects == []
    assert [layer.parameters[0].name for layer in sink.header.layers] == [
        "first.weight",
        "first.weight",
        "third.weight",
    ]
    assert max(row.accumulated / row.way for row in sink.watch["first.weight"]) < 1e-5
    assert np.allclose(sink.rebuilt("first.weight", 3), sink.final["second.weight"], rtol=0, atol=1e-6)


def test_a_weight_used_past_its_layer(tmp_path):
    model = small_net()
    sink = record(model, tmp_path / "m", forward=lambda x: model(x) + model[4].weight[0].sum() * torch.eye(3)[0])
    assert {layer for layer, _, _ in sink.defects} == {"4"}


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.silent, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.kept(x)
        with torch.no_grad():
            y = self.silent(x)
        return self.last(x + y)


def test_a_layer_under_no_grad_has_no_slots(tmp_path):
    sink = record(Silent(), tmp_path / "m")
    assert sink.defects == []
    assert sink.layer_names == ["kept", "last"]
    assert sink.skipped == {"silent": "it ran under torch.no_grad or in an autograd.Function in every recorded step"}


BYPASSED = (
    "its module was not called, but its weight got a gradient, as from module.forward(x) or F.linear(x, module.weight)"
)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.detached, self.never = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)
        self.by_forward, self.by_weight = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        bypassed = self.by_forward.forward(x) + nn.functional.linear(x, self.by_weight.weight)
        return self.first(x) + self.detached(x).detach() + bypassed


def test_a_layer_that_no_step_reaches_is_skipped(tmp_path):
    sink = record(Unused(), tmp_path / "m")
    assert sink.layer_names == ["first"]
    assert sink.skipped == {
        "detached": "its output reached no loss in a recorded step",
        "never": "it was not called in a recorded step",
        "by_forward": BYPASSED,
        "by_weight": BYPASSED,
    }


def scale_row(model):
    model[4].weight.grad[0] *= 1.01


def shift_one(model):
    model[4].weight.grad[1, 2] += 0.01


def scale_bias(model):
    model[4].bias.grad[0] *= 1.01


@pytest.mark.parametrize("edit", [scale_row, shift_one, scale_bias], ids=lambda edit: edit.__name__)
def test_a_gradient_edited_by_hand(tmp_path, edit):
    sink = record(small_net(), tmp_path / "m", edit)
    assert [(layer, step) for layer, step, _ in sink.defects] == [("4", 0)]


def test_a_column_edited_in_a_layer_of_one_output(tmp_path):
    def edit(model):
        model.weight.grad[:, 1] *= 1.01

    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder, opened.recorder.step():
        model(batches(1)[0][0]).square().mean().backward()
        edit(model)
        optimizer.step()
    sink = opened.sink
    assert [layer for layer, _, _ in sink.defects] == [""]


@pytest.mark.parametrize("factor", [0.0, 1e-6, 0.5, -3.0])
def test_a_gradient_scaled_as_a_whole_is_a_factor(tmp_path, factor):
    def edit(model):
        for p in model.parameters():
            p.grad *= factor

    sink = record(small_net(), tmp_path / "m", edit)
    assert sink.defects == []
    assert [f.factor for f in sink.logs[0].factors] == pytest.approx([factor] * 6, rel=1e-5)


def test_an_update_without_anything_recorded(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(3)):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
            if number == 1:
                optimizer.step()
    reason = "the optimizer stepped outside recorder.step at step 1, with gradients that no slot holds"
    assert opened.sink.defects == [("0", 1, reason), ("2", 1, reason), ("4", 1, reason)]
    assert sorted(opened.sink.logs) == [0, 1, 2]


def test_gradients_nearly_cancelled_are_no_defect(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    x = torch.randn(16, 5)
    target = x @ torch.randn(5, 3) + torch.randn(16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        take_steps(opened.recorder, optimizer, 400, lambda _: (model(x) - target).square().mean())
    assert model.weight.grad.norm() < 1e-6
    assert opened.sink.defects == []
