"""Trainings that leave the record whole are exact: undisturbed, frozen late, by heads in turns, of tied weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from .measured_statuses import LAYERS, status_of
from .trained import STEPS, WHEN, train


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1, "nesterov": True}, {"momentum": 0.0}])
def test_an_undisturbed_training_is_exact_as_of_every_step(tmp_path, settings):
    trained = train(tmp_path / "m", **settings)
    for layer in LAYERS:
        assert {status_of(trained, layer, step).name for step in (None, *range(STEPS + 1))} == {"exact"}
        assert status_of(trained, layer).error < 1e-5
        assert trained.engine.verify()[layer].exact


@pytest.mark.parametrize("zeroed", [True, False], ids=["no gradient", "a gradient of zeros"])
def test_a_layer_frozen_late_is_exact(tmp_path, zeroed):
    def freeze(number, model, optimizer):
        if number == WHEN:
            model[2].requires_grad_(False)
            optimizer.zero_grad(set_to_none=not zeroed)

    trained = train(tmp_path / "m", between=freeze)
    measured = trained.measured("2")
    assert measured < 1e-4
    assert status_of(trained).name == "exact"
    assert trained.engine.verify()["2"].exact


class Heads(nn.Module):
    """A trunk and two heads that take turns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.heads = nn.Linear(5, 6), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))
        self.turn: int | None = None

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        if self.turn is None:
            return self.heads[0](hidden) + self.heads[1](hidden)
        return self.heads[self.turn](hidden)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_heads_in_turns_are_exact(tmp_path, momentum):
    def turn(number, model, optimizer):
        model.turn = number % 2

    trained = train(tmp_path / "m", model=Heads(), between=turn, momentum=momentum, weight_decay=0.01)
    for layer in ("trunk", "heads.0", "heads.1"):
        assert trained.measured(layer) < 1e-4
        assert status_of(trained, layer).name == "exact"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_are_exact_under_both_names(tmp_path):
    trained = train(tmp_path / "m", model=Tied())
    view = trained.engine._view
    for layer in ("first", "second"):
        assert status_of(trained, layer).name == "exact"
        assert trained.engine.verify()[layer].reconstruction_error < 1e-5
    state = trained.engine.weights(where="sample < 160")
    first, second = view.snapshot.keys("first"), view.snapshot.keys("second")
    rule = view.coefficients(view.snapshot.layer("first"), "first.weight", None)
    expected = rule.initial * trained.history[0]["first.weight"].double().numpy()
    for name, keys in (("first", first), ("second", second)):
        values = view.snapshot.values(name).block(0, 160).astype(float)
        expected += (values * rule.per_step[np.arange(160) // 8, None]).T @ keys.entry_block(0, 160).astype(float)
    np.testing.assert_allclose(state["first.weight"], expected, rtol=0, atol=1e-6)
    assert state["second.weight"].equal(state["first.weight"])
    trained.model.load_state_dict(state)
    queries = np.ones((2, 5), np.float32)
    with torch.no_grad():
        live = trained.model.second(torch.from_numpy(queries)).numpy()
    found = trained.engine.output("second", queries, where="sample < 160")
    np.testing.assert_allclose(found, live, rtol=0, atol=1e-5)
