"""Ledgers under rules that treat each number on its own, as Adam does: gradients are carried back through them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.influence import scores
from tests.influence.trainings import EXAMPLES, KINDS, ROWS, SAMPLES, labels, numbers, samples

STEPS = 12


ADAPTIVE = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_rules_that_treat_each_number_on_its_own_add_up(tmp_path, name):
    training = replace(KINDS["linear layers"], optimizer=lambda model: ADAPTIVE[name](model.parameters()))
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    change = np.abs(found.final - found.initial).max()
    assert np.abs(found.residual).max() <= 1e-3 * change
    assert np.abs(found.lines["truncated"]).max() <= 1e-9
    assert (np.abs(found.lines["decay"]).max() > 1e-6) == (name == "AdamW")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_layer_adds_up_under_adam(tmp_path, name):
    training = replace(KINDS[name], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(found.residual).max() <= 1e-2 * np.abs(found.final - found.initial).max()
    assert np.abs(found.lines["truncated"]).max() <= 1e-9


def test_gradients_that_are_carried_back_fade(tmp_path):
    """So many updates are held that the first of them are let go several times."""
    training = replace(
        KINDS["linear layers"], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.3, 0.9))
    )
    training.record(tmp_path / "m", 40)
    whole, cut = (
        dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=tail))
        for tail in (0.0, 0.03)
    )
    assert 1e-6 < np.abs(cut.lines["truncated"]).max() < 0.01 * np.abs(whole.sums).sum(1).max()
    np.testing.assert_allclose(cut.sums.sum(1) + cut.lines["truncated"], whole.sums.sum(1), atol=1e-9)
    np.testing.assert_allclose(cut.sums, whole.sums, atol=0.02 * np.abs(whole.sums).max())


@pytest.mark.parametrize("name", ["linear layers", "attention", "a tied weight"])
def test_examples_are_carried_back_in_parts(tmp_path, monkeypatch, name):
    training = replace(KINDS[name], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    training.record(tmp_path / "m", 4)
    whole = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    monkeypatch.setattr(scores, "_MATRICES_BYTES", 1000)
    parts = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-9, atol=1e-15)


def before_a_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 4))


def convolution_before_a_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 9, 4))


NORMED = {
    "linear": replace(KINDS["linear layers"], make=before_a_norm),
    "convolution": replace(KINDS["linear layers"], make=convolution_before_a_norm, inputs=numbers((2, 3, 3))),
}
B1, B2, LR = 0.9, 0.999, 0.01


def steps_of(name: str, step: int, mu: list[float]):
    """What an update makes of a gradient and of the momentum after it, over the root of the squares' mean."""
    if name != "NAdam":
        return 0.0, LR / (1 - B1 ** (step + 1))
    mu.extend(B1 * (1 - 0.5 * 0.96 ** (own * 4e-3)) for own in range(len(mu) + 1, step + 3))
    product, after = np.prod(mu[: step + 1]), np.prod(mu[: step + 2])
    return LR * (1 - mu[step]) / (1 - product), LR * mu[step + 1] / (1 - after)


def by_autograd(training, path, name):
    """In float64: what each sample brought to the examples' losses, float64[n, samples], and what biases before a norm
    brought, float64[n]. No slot has a part of those.
    """
    states = []
    model = training.record(path, STEPS, lambda own, step: states.append(deepcopy(own.state_dict())))
    states.append(model.state_dict())
    model = training.make().double()
    layers = {key: own for key, own in model.named_children() if isinstance(own, nn.Linear | nn.Conv2d)}
    seen = {}
    for key, own in layers.items():
        own.register_forward_hook(lambda m, args, out, k=key: seen.update({k: (args[0], out)}))
    known = [key for key, _ in model.named_parameters() if key != "0.bias" and key.split(".")[0] in layers]
    x, y = training.inputs(99)[:EXAMPLES].double(), labels(99)[:EXAMPLES]
    found, rounding = np.zeros((EXAMPLES, SAMPLES)), np.zeros(EXAMPLES)
    first = {key: np.zeros((SAMPLES, *dict(model.named_parameters())[key].shape)) for key in known}
    second, mu = dict.fromkeys(known, 0.0), []
    for step, state in enumerate(states[:-1]):
        model.load_state_dict(state)
        parameters = dict(model.named_parameters())
        examples = []
        for example in range(EXAMPLES):
            loss = training.loss(model.eval()(x[example : example + 1]), y[example : example + 1]).sum()
            examples.append(dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)))
        loss = training.loss(model.train()(training.inputs(step).double()), labels(step)).mean()
        errors = dict(zip(seen, torch.autograd.grad(loss, [out for _, out in seen.values()]), strict=True))
        own = {key: np.zeros_like(first[key]) for key in known}
        inputs = {key: rows.detach() for key, (rows, _) in seen.items()}
        for key, layer in layers.items():
            for row, sample in enumerate(samples(step)):
                out = layer(inputs[key][row : row + 1])
                brought = torch.autograd.grad(out, list(layer.parameters()), errors[key][row : row + 1])
                for kind, part in zip(("weight", "bias"), brought, strict=True):
                    if f"{key}.{kind}" in own:
                        own[f"{key}.{kind}"][sample] += part.numpy()
        of_gradient, of_momentum = steps_of(name, step, mu)
        for key in known:
            first[key] = B1 * first[key] + (1 - B1) * own[key]
            second[key] = B2 * second[key] + (1 - B2) * own[key].sum(0) ** 2
            root = np.sqrt(second[key] / (1 - B2 ** (step + 1))) + 1e-8
            moved = -(of_gradient * own[key] + of_momentum * first[key]) / root
            for example, gradient in enumerate(examples):
                found[example] += (moved * gradient[key].numpy()).reshape(SAMPLES, -1).sum(1)
        for example, gradient in enumerate(examples):
            way = states[step + 1]["0.bias"].double() - state["0.bias"].double()
            rounding[example] += float((way * gradient["0.bias"]).sum())
    return found, rounding


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam"])
@pytest.mark.parametrize("kind", NORMED)
def test_biases_whose_gradient_is_rounding_are_a_line_and_no_samples(tmp_path, kind, name):
    """The gradient of a bias before a BatchNorm cancels in each batch. Adam makes full steps of what is left."""
    training = replace(
        NORMED[kind], optimizer=lambda model: getattr(torch.optim, name)(model.parameters(), lr=LR, weight_decay=0.0)
    )
    expected, rounding = by_autograd(training, tmp_path / "m", name)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(tail=0.0))
    np.testing.assert_allclose(found.sums, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.abs(rounding).max() > 1e-4
    np.testing.assert_allclose(found.lines["rounding"], rounding, atol=1e-4 * np.abs(rounding).max())
    assert np.abs(found.lines["decay"]).max() < 1e-9
    assert not found.remark
    path = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(path.residual).max() <= 1e-2 * np.abs(path.final - path.initial).max()


def test_groups_that_cancel_each_other_out_are_warned_of(tmp_path):
    """The weights of a constant input before a BatchNorm have a gradient of rounding, too, and are no bias."""
    training = replace(
        NORMED["linear"],
        inputs=lambda seed: torch.cat([numbers((5,))(seed), torch.ones(ROWS, 1)], 1),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=LR),
    )
    training.record(tmp_path / "m", STEPS)
    with pytest.warns(RuntimeWarning, match="The groups cancel each other out: do not rank them") as warned:
        found = dualform.ledger(tmp_path / "m", training.make(), training.influence(), allow_inexact=True)
    assert found.remark in str(warned[0].message)
    assert warned[0].filename == __file__
    assert found.largest.shape == (EXAMPLES,)
    assert found.largest.max() > 50 * np.abs(found.final - found.initial).max()
    assert f"the largest group moved a loss by {found.largest.max():.3g}" in found.title()
