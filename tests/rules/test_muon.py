"""Muon's rule: what it makes of the whole, held against torch, and of parts of it, held against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from dualform.rules import State, advanced, named, updated
from tests.cases import pairwise

SHAPES = [(48, 96), (64, 64), (128, 32)]
BFLOAT16 = 2.0**-8
"""Half the distance from 1 to the next number."""


def settings_of(**options):
    (group,) = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))], **options).param_groups
    return named("muon").read(group)


def gradient_of(shape, seed=0):
    """Of directions that weigh as much as 1e4 and 1."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=shape) * np.logspace(0, -4, shape[1])
    return numbers.astype(np.float32).astype(np.float64)


def derivative(gradient, direction, settings):
    """d(what torch orthogonalizes to) along a direction, in float64, every product of the matrix with itself held."""
    a, b, c = settings["a"], settings["b"], settings["c"]
    amount = torch.zeros((), dtype=torch.float64, requires_grad=True)
    moved = torch.tensor(gradient) + amount * torch.tensor(direction)
    moved = moved.T if len(gradient) > gradient.shape[1] else moved
    moved = moved / moved.detach().norm().clamp(min=settings["eps"])
    for _ in range(int(settings["ns_steps"])):
        gram = (moved @ moved.T).detach()
        moved = a * moved + (b * gram + c * gram @ gram) @ moved
    moved = moved.T if len(gradient) > gradient.shape[1] else moved
    rows = [torch.autograd.grad(one, amount, retain_graph=True)[0] for one in moved.reshape(-1)]
    return torch.stack(rows).reshape(gradient.shape).numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_one_update_is_that_of_torch_to_bfloat16(shape):
    gradient = gradient_of(shape)
    setting = settings_of(lr=1.0, weight_decay=0.0, nesterov=False, momentum=0.0)
    after, _ = updated(named("muon"), State(np.zeros(shape)), gradient, setting)
    own = torch.tensor(gradient, dtype=torch.float32)
    made = _zeropower_via_newtonschulz(own, tuple(setting[name] for name in "abc"), 5, 1e-7).double().numpy()
    made *= max(1, shape[0] / shape[1]) ** 0.5
    assert np.linalg.norm(after.weight + made) < BFLOAT16 * np.linalg.norm(made)


OPTIONS = [
    {"lr": 1e-2},
    {"lr": 1e-2, "nesterov": False, "weight_decay": 0.0},
    {"lr": 1e-3, "momentum": 0.5, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": torch.tensor(1e-2), "ns_coefficients": (3.0, -3.2, 1.2)},
]


@pytest.mark.parametrize(("shape", "options", "before"), pairwise([(12, 20), (20, 12)], OPTIONS, [0, 3]))
def test_many_updates_are_those_of_torch_to_bfloat16(shape, options, before):
    torch.manual_seed(0)
    weight, rule = nn.Parameter(0.1 * torch.randn(shape)), named("muon")
    optimizer = torch.optim.Muon([weight], **options)
    for number in range(before):
        weight.grad = torch.tensor(gradient_of(shape, number), dtype=torch.float32)
        optimizer.step()
    kept = {kind: own.double().numpy().copy() for kind, own in optimizer.state.get(weight, {}).items()}
    start = weight.detach().double().numpy().copy()
    state, setting = State(start, kept), rule.read(optimizer.param_groups[0])
    for number in range(30):
        gradient = gradient_of(shape, 10 + number)
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        state, _ = updated(rule, state, gradient, setting)
    now = weight.detach().double().numpy()
    assert np.linalg.norm(state.weight - now) < BFLOAT16 * np.linalg.norm(now - start)
    np.testing.assert_allclose(
        state.buffers["momentum_buffer"], optimizer.state[weight]["momentum_buffer"].numpy(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_a_part_moves_by_what_autograd_says_and_its_share_of_rounding(shape):
    rule, setting = named("muon"), settings_of(lr=1.0, weight_decay=0.0, nesterov=False, momentum=0.0)
    gradient, direction = np.random.default_rng(1).normal(size=(2, *shape))
    ratio = max(1, shape[0] / shape[1]) ** 0.5
    whole, scale = updated(rule, State(np.zeros(shape)), gradient, setting)
    found = -advanced(rule, State(np.zeros(shape)), direction, setting, scale).weight / ratio
    # What rounding did to the whole goes to a part by its length along the whole.
    rest = -whole.weight / ratio - derivative(gradient, gradient, setting)
    assert 1e-3 < np.linalg.norm(rest) / np.linalg.norm(whole.weight) < 0.1  # five steps enlarge it
    along = float((direction * gradient).sum() / (gradient * gradient).sum())
    expected = derivative(gradient, direction, setting) + along * rest
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_zero_moves_nothing():
    setting = settings_of(weight_decay=0.0)
    after, scale = updated(named("muon"), State(np.ones((3, 4))), np.zeros((3, 4)), setting)
    np.testing.assert_array_equal(after.weight, np.ones((3, 4)))
    assert np.isfinite(scale.factors).all()


def test_a_way_to_adjust_the_rate_that_is_not_known_is_refused():
    (group,) = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))]).param_groups
    assert named("muon").refusal(group) == ""
    assert named("muon").refusal({**group, "adjust_lr_fn": "newest"}) == "its adjust_lr_fn is 'newest'"
