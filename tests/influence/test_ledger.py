"""The ledger of a training: what each sample did to losses of examples, against autograd and against their change."""

from __future__ import annotations

import copy
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import dualform
from dualform.errors import BadInput, Inexact
from dualform.influence import blocks, scores
from tests.influence.trainings import (
    EXAMPLES,
    KINDS,
    ROWS,
    SAMPLES,
    Training,
    computed,
    labels,
    numbers,
    perceptron,
    samples,
    sgd,
    squares,
)
from tests.query.test_backends import SETTINGS

STEPS = 12


def gradients(model: nn.Module, weights, loss) -> dict[str, np.ndarray]:
    """float64 gradients of a loss of a network in float64 at some weights, by autograd."""
    given = {name: own.detach().double().requires_grad_() for name, own in weights.items()}
    found = torch.autograd.grad(loss(lambda x: functional_call(model, given, (x,))), list(given.values()))
    return {name: own.numpy() for name, own in zip(given, found, strict=True)}


def stored_gradients(path) -> dict[str, np.ndarray]:
    """float64[steps, …]: by parameter of linear layers, those of each batch, as sums over its slots."""
    found = dict[str, np.ndarray]()
    with dualform.open(path) as memory:
        for layer in memory.info().layers:
            keys, values = (
                rows.astype(float).reshape(STEPS, ROWS, -1)
                for rows in (memory.keys(layer.name), memory.values(layer.name))
            )
            found[f"{layer.name}.weight"] = np.einsum("tri,trj->tij", values, keys)
            found[f"{layer.name}.bias"] = values.sum(1)
    return found


def by_hand(training: Training, path, settings) -> tuple[np.ndarray, np.ndarray]:
    """float64[n, samples]: first order, by autograd for each slot and each example, and buffers by plain sums; and the
    sums of the sizes of what is added up.

    The gradient of a slot is its share of the batch's; `settings` are lr, momentum and nesterov, or Adam's betas. What
    Adam divides by is made of the stored rows: if a batch's gradient is almost zero, its last bits decide the quotient.
    """
    states = list[dict[str, torch.Tensor]]()
    training.record(path, STEPS, lambda model, step: states.append(copy.deepcopy(model.state_dict())))
    model = training.make().double()
    x, y = training.inputs(99)[:EXAMPLES], labels(99)[:EXAMPLES]
    m, (found, sizes) = settings.get("momentum", 0.0), np.zeros((2, EXAMPLES, SAMPLES))
    shares, squares = list[list[dict[str, np.ndarray]]](), dict[str, np.ndarray]()
    stored = stored_gradients(path) if "betas" in settings else {}
    for step, weights in enumerate(states):
        own = training.inputs(step).double(), labels(step)
        shares.append(
            [
                gradients(model, weights, lambda f, r=row, o=own: training.loss(f(o[0]), o[1])[r] / ROWS)
                for row in range(ROWS)
            ]
        )
        whole = {name: sum(share[name] for share in shares[step]) for name in weights}
        if training.clip is not None:
            norm = np.sqrt(sum(np.square(part).sum() for part in whole.values()))
            factor = min(1.0, training.clip / (norm + 1e-6))
            shares[step] = [{name: factor * part for name, part in share.items()} for share in shares[step]]
        rates = dict.fromkeys(weights, settings["lr"])
        if "betas" in settings:
            m, beta = settings["betas"]
            squares = {
                name: beta * squares.get(name, 0.0) + (1 - beta) * own[step] ** 2 for name, own in stored.items()
            }
            root = {name: np.sqrt(own / (1 - beta ** (step + 1))) + 1e-8 for name, own in squares.items()}
            rates = {name: settings["lr"] * (1 - m) / (1 - m ** (step + 1)) / root[name] for name in weights}
        for example in range(EXAMPLES):
            of_example = gradients(
                model, weights, lambda f, e=example: training.loss(f(x[e : e + 1].double()), y[e : e + 1])[0]
            )
            for before in range(step + 1):
                coefficient = m ** (step - before)
                if settings.get("nesterov"):
                    coefficient = m * coefficient + (before == step)
                for sample, share in zip(samples(before), shares[before], strict=True):
                    products = [coefficient * rates[name] * share[name] * of_example[name] for name in weights]
                    found[example, sample] -= sum(own.sum() for own in products)
                    sizes[example, sample] += sum(np.abs(own).sum() for own in products)
    return found, sizes


@pytest.mark.parametrize(
    ("training", "settings"),
    [
        (replace(KINDS["linear layers"], optimizer=sgd(lr=0.1)), {"lr": 0.1}),
        (
            replace(KINDS["linear layers"], optimizer=sgd(lr=0.05, momentum=0.8, nesterov=True), clip=0.3),
            {"lr": 0.05, "momentum": 0.8, "nesterov": True},
        ),
        (KINDS["convolution in groups"], {"lr": 0.05, "momentum": 0.8}),
        (
            replace(
                KINDS["linear layers"],
                optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.7, 0.9)),
            ),
            {"lr": 0.01, "betas": (0.7, 0.9)},
        ),
    ],
    ids=["plain", "nesterov and clipping", "convolution in groups", "AdamW"],
)
def test_first_order_is_the_dot_product_of_gradients_by_autograd(tmp_path, training, settings):
    """A term is a rate times a share times a number of an example's gradient. The last two are float32, each at the end
    of some thirty operations, and all else is float64: no term is off by more than 64 roundings of 2^-24.
    """
    expected, sizes = by_hand(training, tmp_path / "m", settings)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(tail=0.0))
    assert found.groups == tuple((sample,) for sample in range(SAMPLES))
    assert found.counts.sum() == sum(layer.slots for layer in first_of_each_space(tmp_path / "m"))
    assert (np.abs(found.sums - expected) <= 64 * 2.0**-24 * sizes).all()


def first_of_each_space(path):
    with dualform.open(path) as memory:
        layers = memory.info().layers
    return {layer.space: layer for layer in layers}.values()


@pytest.fixture
def layer_by_layer():
    """As the ledger runs a network: torch's fused attention block gives other last bits."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("name", ["linear layers", "LSTM and embedding", "batch norm and dropout"])
def test_the_path_adds_up_to_the_change_of_each_loss(tmp_path, name, layer_by_layer):
    training = KINDS[name]
    model = training.record(tmp_path / "m", STEPS).eval()
    path = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path"))
    change = path.final - path.initial
    assert np.abs(path.sums.sum(1) + sum(path.lines.values()) + path.residual - change).max() < 1e-12
    assert np.abs(path.residual).max() <= 1e-3 * np.abs(change).max()
    first = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    assert np.abs(path.residual).max() < 0.1 * np.abs(first.residual).max()
    model.requires_grad_(False)  # of what trains, torch may choose other products
    with torch.no_grad():
        own = training.loss(model(training.inputs(99)[:EXAMPLES]), labels(99)[:EXAMPLES])
    np.testing.assert_allclose(path.final, own.numpy(), rtol=1e-5)
    np.testing.assert_allclose(path.final + path.unexplained, own.numpy(), rtol=1e-12)
    assert all(status.exact for status in path.statuses.values())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"optimizer": sgd(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.05)}, "decay"),
        ({"optimizer": sgd(momentum=0.5), "every": 3}, ""),
        ({"optimizer": sgd(momentum=0.5, nesterov=True, maximize=True), "clip": 0.2}, ""),
    ],
)
def test_every_variant_of_sgd_adds_up(tmp_path, change, line):
    training = replace(KINDS["linear layers"], **change)
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(found.residual).max() <= 1e-3 * np.abs(found.final - found.initial).max()
    for name, own in found.lines.items():
        assert (np.abs(own).max() > 1e-3) == (name == line), name


def test_slots_that_are_read_a_few_at_a_time_have_the_same_ledger(tmp_path, monkeypatch):
    training = KINDS["LSTM and embedding"]
    training.record(tmp_path / "m", STEPS)
    whole = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    monkeypatch.setattr(blocks, "_READ_AHEAD", 200)
    parts = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    np.testing.assert_array_equal(parts.sums, whole.sums)
    np.testing.assert_array_equal(parts.final, whole.final)


def test_of_a_quadratic_loss_two_points_are_exact(tmp_path):
    training = Training(lambda: nn.Linear(6, 4), numbers((6,)), sgd(lr=0.05, momentum=0.8), squares)
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(found.residual).max() <= 2e-6 * np.abs(found.initial).max()


def test_what_is_not_followed_any_more_is_truncated(tmp_path):
    training = replace(KINDS["linear layers"], optimizer=sgd(lr=0.05, momentum=0.9))
    training.record(tmp_path / "m", STEPS)
    whole, cut = (
        dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=tail))
        for tail in (0.0, 0.5)
    )
    assert np.abs(whole.lines["truncated"]).max() < 1e-12
    assert np.abs(cut.lines["truncated"]).max() > 1e-3
    np.testing.assert_allclose(cut.residual, whole.residual, atol=1e-12)
    np.testing.assert_allclose(cut.sums.sum(1) + cut.lines["truncated"], whole.sums.sum(1), atol=1e-12)


def test_norms_have_lines_of_their_own_and_nothing_of_the_model_or_of_the_random_states_changes(tmp_path):
    training = KINDS["batch norm and dropout"]
    model = training.record(tmp_path / "m", STEPS)
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    for parameter in model.parameters():
        parameter.grad = None
    found = dualform.ledger(tmp_path / "m", model, training.influence(method="path"))
    assert np.abs(found.lines["buffers"]).max() > 1e-3
    assert np.abs(found.lines["other parameters"]).max() > 1e-3
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("optimizer", [sgd(lr=0.05, momentum=0.5), lambda m: torch.optim.Adam(m.parameters(), 0.01)])
def test_what_it_takes_is_told_beforehand(tmp_path, optimizer):
    training = replace(KINDS["linear layers"], optimizer=optimizer)
    training.record(tmp_path / "m", STEPS)
    influence = training.influence(tail=0.1)
    told = dualform.estimate_ledger(tmp_path / "m", training.make(), influence, tried=8)
    found = dualform.ledger(tmp_path / "m", training.make(), influence)
    assert (told.groups, told.examples, told.steps, told.tried) == (SAMPLES, EXAMPLES, STEPS, 8)
    assert told.bytes == found.sums.nbytes == 8 * SAMPLES * EXAMPLES
    assert told.held_bytes > 0
    assert told.seconds > 0
    assert str(told).startswith(f"{EXAMPLES} examples and {SAMPLES} groups through {STEPS} steps: about ")
    with pytest.raises(BadInput, match="tried must be a whole number from 2 on, not 1"):
        dualform.estimate_ledger(tmp_path / "m", training.make(), influence, tried=1)


def test_the_largest_contributions_come_first_with_their_sign_and_a_frozen_model_has_the_same(tmp_path):
    training = KINDS["linear layers"]
    model = training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(by="label"))
    best = found.best(0, 3)
    assert [abs(own) for _, own in best] == sorted((abs(own) for own in found.sums[0]), reverse=True)[:3]
    assert all(own == found.sums[0][found.groups.index(group)] for group, own in best)
    assert found.by == ("label",)
    frozen = dualform.ledger(tmp_path / "m", model.requires_grad_(False), training.influence(by="label"))
    assert frozen.sums.tobytes() == found.sums.tobytes()


def test_a_network_in_float64_is_followed_as_well(tmp_path):
    training = replace(
        KINDS["linear layers"],
        make=lambda: perceptron().double(),
        inputs=lambda seed: KINDS["linear layers"].inputs(seed).double(),
    )
    model = training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", model, training.influence(method="path"), allow_inexact=True)
    assert np.abs(found.residual).max() <= 1e-3 * np.abs(found.final - found.initial).max()


def write_outside(model: nn.Module, step: int) -> None:
    if step == 5:
        with torch.no_grad():
            model[0].weight.mul_(0.9)


def test_what_the_record_does_not_explain_is_refused_or_told(tmp_path):
    training = KINDS["linear layers"]
    model = training.record(tmp_path / "m", STEPS, write_outside).eval()
    with pytest.raises(Inexact, match="weights were changed outside"):
        dualform.ledger(tmp_path / "m", training.make(), training.influence())
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(), allow_inexact=True)
    with torch.no_grad():
        own = training.loss(model(training.inputs(99)[:EXAMPLES]), labels(99)[:EXAMPLES]).numpy()
    np.testing.assert_allclose(found.final + found.unexplained, own, rtol=1e-6)
    assert np.abs(found.unexplained).max() > 1e-4
    assert not found.statuses["0"].exact


def test_a_layer_without_values_is_among_the_other_parameters(tmp_path):
    training = replace(KINDS["linear layers"], make=computed)
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path"))
    assert np.abs(found.lines["other parameters"]).max() > 1e-3
    assert np.abs(found.residual).max() <= 1e-3 * np.abs(found.final - found.initial).max()


def test_a_training_that_was_resumed_has_the_ledger_of_one_that_never_stopped(tmp_path):
    from tests.record.resumed_training import Training as Stopped, batch

    def whole(folder, moments):
        for until in moments:
            training = Stopped()
            training.optimizers = [torch.optim.SGD(training.model.parameters(), lr=0.05, momentum=0.9)]
            if until != moments[0]:
                training.load(tmp_path / f"{folder}-checkpoint")
            training.run(
                tmp_path / folder, until, (until,), tmp_path / f"{folder}-checkpoint", resume=until != moments[0]
            )

    x, y = batch(99)
    influence = dualform.Influence("test", x, y, KINDS["linear layers"].loss, method="path")
    whole("at once", [9])
    whole("stopped", [4, 9])
    once, stopped = (dualform.ledger(tmp_path / name, Stopped().model, influence) for name in ("at once", "stopped"))
    np.testing.assert_allclose(stopped.sums, once.sums, rtol=1e-9, atol=1e-12)
    assert np.abs(stopped.residual).max() <= 1e-2 * np.abs(stopped.final - stopped.initial).max()


def test_no_setting_of_torch_changes_a_ledger(tmp_path):
    """But for the precision in which the model itself computes."""
    training = KINDS["LSTM and embedding"]
    training.record(tmp_path / "m", 4)
    model, influence, found = training.make(), training.influence(), {}
    for setting in (
        "none",
        "autocast to bfloat16",
        "default float64",
        "default device",
        "high precision",
        "flushed to zero",
        "inference mode",
    ):
        with SETTINGS[setting]():
            found[setting] = dualform.ledger(tmp_path / "m", model, influence).sums.tobytes()
    assert {setting for setting, sums in found.items() if sums != found["none"]} == set()


ADAPTIVE = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5),
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


@pytest.mark.parametrize("name", ["convolution in groups", "attention", "a tied weight"])
def test_every_kind_of_layer_adds_up_under_adam_and_examples_are_carried_back_in_parts(tmp_path, monkeypatch, name):
    training = replace(KINDS[name], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(found.residual).max() <= 1e-2 * np.abs(found.final - found.initial).max()
    assert np.abs(found.lines["truncated"]).max() <= 1e-9
    monkeypatch.setattr(scores, "_MATRICES_BYTES", 1000)
    parts = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    np.testing.assert_allclose(parts.sums, found.sums, rtol=1e-9, atol=1e-15)


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


def before_a_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 4))


NORMED = replace(KINDS["linear layers"], make=before_a_norm)
B1, B2, LR = 0.9, 0.999, 0.01


def by_autograd(training, path):
    """In float64: what each sample brought to the examples' losses, float64[n, samples], and what biases before a norm
    brought, float64[n]. No slot has a part of those.
    """
    states = []
    model = training.record(path, STEPS, lambda own, step: states.append(deepcopy(own.state_dict())))
    states.append(model.state_dict())
    model = training.make().double()
    layers = {key: own for key, own in model.named_children() if isinstance(own, nn.Linear)}
    seen = {}
    for key, own in layers.items():
        own.register_forward_hook(lambda m, args, out, k=key: seen.update({k: (args[0], out)}))
    known = [key for key, _ in model.named_parameters() if key != "0.bias" and key.split(".")[0] in layers]
    x, y = training.inputs(99)[:EXAMPLES].double(), labels(99)[:EXAMPLES]
    found, rounding = np.zeros((EXAMPLES, SAMPLES)), np.zeros(EXAMPLES)
    first = {key: np.zeros((SAMPLES, *dict(model.named_parameters())[key].shape)) for key in known}
    second = dict.fromkeys(known, 0.0)
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
        for key in known:
            first[key] = B1 * first[key] + (1 - B1) * own[key]
            second[key] = B2 * second[key] + (1 - B2) * own[key].sum(0) ** 2
            root = np.sqrt(second[key] / (1 - B2 ** (step + 1))) + 1e-8
            moved = -LR / (1 - B1 ** (step + 1)) * first[key] / root
            for example, gradient in enumerate(examples):
                found[example] += (moved * gradient[key].numpy()).reshape(SAMPLES, -1).sum(1)
        for example, gradient in enumerate(examples):
            way = states[step + 1]["0.bias"].double() - state["0.bias"].double()
            rounding[example] += float((way * gradient["0.bias"]).sum())
    return found, rounding


def test_biases_whose_gradient_is_rounding_are_a_line_and_no_samples(tmp_path):
    """The gradient of a bias before a BatchNorm cancels in each batch. Adam makes full steps of what is left."""
    training = replace(NORMED, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0))
    expected, rounding = by_autograd(training, tmp_path / "m")
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
        NORMED,
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
