"""The softmax of layers of several parts, of tied ones, and of those that it cannot weigh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import Inexact
from tests.record.listed import skip_without_bfloat16


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, path, inputs, steps: int = 3):
    with dualform.Recorder(model, optimizer, path) as recorder:
        for _ in range(steps):
            with recorder.step():
                optimizer.zero_grad()
                found = model(inputs())
                (found[0] if isinstance(found, tuple) else found).square().sum().backward()
                optimizer.step()
    return dualform.open(path)


LSTM = ("0.weight_hh_l0", "0.weight_ih_l0")


def lstm_memory(path, *, length=4, steps=3, halved=LSTM, rates=None, autocast=False):
    """A tiny LSTM; the gradients of the `halved` parts count half. `rates`: of each step, for weights of the state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(3, 2, batch_first=True))
    named = dict(model.named_parameters())
    state = [{"params": [p]} for name, p in named.items() if "weight_hh" in name]
    other = [{"params": [p for name, p in named.items() if "weight_hh" not in name]}]
    optimizer = torch.optim.SGD(state + other, lr=0.1)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rates[step] if rates else 0.1
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    found = model(torch.randn(5, length, 3))[0]
                found.float().square().sum().backward()
                for name in halved:
                    named[name].grad.mul_(0.5)
                optimizer.step()
    return dualform.open(path)


def assert_mean_of_values(memory, coefficient, where=None, rtol=1e-4):
    """A query of zeros weighs all slots alike."""
    slots = memory.sql(f"SELECT slot FROM slots WHERE {where or 'true'} ORDER BY slot")["slot"]
    wanted = coefficient * memory.values("0", slots).mean(axis=0)
    found = memory.output("0", np.zeros(5, np.float32), where, kernel="softmax", initial=False)
    np.testing.assert_allclose(found[0], wanted, rtol=rtol, atol=1e-8)
    assert found.effective_slots[0] == pytest.approx(len(slots))


def test_parts_whose_factors_bfloat16_rounds_have_one_value(tmp_path):
    skip_without_bfloat16()
    with lstm_memory(tmp_path / "run", autocast=True) as memory:
        assert str(memory.info().layers[0].status) == "exact to bfloat16"
        assert_mean_of_values(memory, -0.05, rtol=2.0**-7)


def test_a_part_without_a_gradient_says_nothing_of_the_value(tmp_path):
    """Of sequences of length 1 the state is zero, and so is the gradient of its weight: no factor shows in it."""
    with lstm_memory(tmp_path / "run", length=1) as memory:
        assert_mean_of_values(memory, -0.05)


def test_only_steps_whose_slots_attend_are_compared(tmp_path):
    with lstm_memory(tmp_path / "run", rates=(0.1, 0.1, 0.2)) as memory:
        assert_mean_of_values(memory, -0.05, where="step < 2")
        with pytest.raises(Inexact, match=r"moved differently"):
            memory.output("0", np.zeros(5), kernel="softmax")


@pytest.mark.parametrize(
    "apart", [{"rates": (0.1, 0.1 * (1 + 1e-7), 0.1)}, {"halved": LSTM[:1]}], ids=["a learning rate", "a factor"]
)
def test_settings_are_compared_exactly_and_factors_as_the_status_allows(tmp_path, apart):
    with (
        lstm_memory(tmp_path / "run", **apart) as memory,
        pytest.raises(
            Inexact,
            match=r"^Contributions of single slots are not defined for layer '0': the parts of its "
            r"weight, 0\.weight_hh_l0, 0\.weight_ih_l0, moved differently\.",
        ),
    ):
        memory.output("0", np.zeros(5), kernel="softmax")


def test_adam_is_refused_by_name_but_its_sum_alone_is_not(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    start = model[0].weight.detach().numpy().astype(float)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with trained(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        with pytest.raises(Inexact, match=r"^Single slots have no term of their own in layer .* with Adam") as refused:
            memory.output("0", np.ones(3), kernel="softmax")
        assert (refused.value.hint, refused.value.field) == ('Pass kernel="linear".', "kernel")
        moved = model[0].weight.detach().numpy().astype(float) - start
        np.testing.assert_allclose(memory.output("0", np.ones(3), initial=False)[0], moved.sum(axis=1), rtol=1e-4)


class Tied(nn.Module):
    def __init__(self, kind="weight"):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        setattr(self.other, kind, getattr(self.one, kind))

    def forward(self, inputs):
        return self.other(self.one(inputs))


def test_a_shared_weight_is_refused_by_name_but_its_sum_alone_is_not(tmp_path):
    torch.manual_seed(0)
    model = Tied()
    start = model.one.weight.detach().numpy().astype(float)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trained(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        with pytest.raises(
            Inexact,
            match=r"^Contributions of single slots are not defined for layer 'one': it shares a "
            r"parameter with layer 'other', whose slots are others\.",
        ):
            memory.output("one", np.ones(3), kernel="softmax")
        moved = model.one.weight.detach().numpy().astype(float) - start
        np.testing.assert_allclose(memory.output("one", np.ones(3), initial=False)[0], moved.sum(axis=1), rtol=1e-4)


def test_a_shared_bias_is_the_sum_over_the_slots_of_both(tmp_path):
    torch.manual_seed(0)
    model = Tied("bias")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trained(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        ask = lambda where, **of: memory.output("one", np.ones(3), where, **of).values  # noqa: E731
        for where in (None, "step <> 1"):
            beside = ask(where, kernel="softmax") - ask(where, kernel="softmax", initial=False)
            np.testing.assert_allclose(beside, ask(where) - ask(where, initial=False), rtol=1e-5, atol=1e-6)


def test_parts_of_a_weight_that_moved_differently_are_refused(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(3, 2, batch_first=True))
    own = [
        {"params": [p for name, p in model.named_parameters() if "ih" in name], "lr": 0.1},
        {"params": [p for name, p in model.named_parameters() if "hh" in name], "lr": 0.2},
    ]
    inputs = lambda: torch.randn(4, 5, 3)  # noqa: E731
    with trained(model, torch.optim.SGD(own), tmp_path / "apart", inputs) as memory:
        layer = memory.info().layers[0]
        with pytest.raises(Inexact) as refused:
            memory.output(layer.name, np.ones(layer.d_in), kernel="softmax")
        assert refused.value.message == (
            "Contributions of single slots are not defined for layer '0': the parts of its "
            "weight, 0.weight_hh_l0, 0.weight_ih_l0, moved differently."
        )
    with trained(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "alike", inputs) as memory:
        name, query = layer.name, np.linspace(-1, 1, layer.d_in).astype(np.float32)
        scores = memory.keys(name).astype(float) @ query
        weights = np.exp(scores) / np.exp(scores).sum()
        values = memory.coefficients(name, np.arange(len(scores)))[:, None] * memory.values(name)
        found = memory.output(name, query, kernel="softmax", initial=False)
        np.testing.assert_allclose(found[0], weights @ values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["convolution", "embedding"])
def test_patches_and_tokens_attend_each_for_itself(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "convolution":
        model, inputs = nn.Sequential(nn.Conv2d(2, 3, 2)), lambda: torch.randn(2, 2, 4, 4)
    else:
        model, inputs = nn.Sequential(nn.Embedding(7, 3)), lambda: torch.randint(0, 7, (4, 5))
    with trained(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", inputs) as memory:
        layer = memory.info().layers[0]
        query = np.linspace(-1, 1, layer.d_in).astype(np.float32)
        keys = memory.keys(layer.name).astype(float)
        assert len(keys) == layer.slots
        weights = np.exp(keys @ query) / np.exp(keys @ query).sum()
        values = memory.coefficients(layer.name, np.arange(layer.slots))[:, None] * memory.values(layer.name)
        found = memory.output(layer.name, query, kernel="softmax", initial=False)
        np.testing.assert_allclose(found[0], weights @ values, rtol=1e-5, atol=1e-7)
        assert found.effective_slots[0] == pytest.approx(1 / np.square(weights).sum())
