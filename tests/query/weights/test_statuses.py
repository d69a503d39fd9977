"""A status is what was measured: what happens to weights outside the record shows, with its step, and nothing else."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from dualform.answers import Status
from dualform.errors import Inexact
from dualform.query.weights.exactness import EXACT, BlockDistance, status
from dualform.query.weights.reconstruction import _confirmed, rebuild, require
from dualform.query.weights.trajectory import every_slot
from dualform.query.where import mask
from tests.query.trained import STEPS, WHEN, train
from tests.record.listed import small_net


def status_of(trained, layer="2", at_step=None):
    view = trained.engine._view
    return status(view, view.snapshot.layer(layer), at_step)


def required(trained, layer, at_step=None, allow_inexact=False):
    view = trained.engine._view
    return require(view, view.snapshot.layer(layer), at_step, allow_inexact, lambda: None)


class Best:
    """Early stopping: the weights of an earlier step are loaded again."""

    def __call__(self, number, model, optimizer):
        if number == WHEN // 2:
            self.state = copy.deepcopy(model.state_dict())
        if number == WHEN:
            model.load_state_dict(self.state)


class LoadState:
    def __call__(self, number, model, optimizer):
        if number == WHEN // 2:
            self.state = copy.deepcopy(optimizer.state_dict())
        if number == WHEN:
            optimizer.load_state_dict(self.state)


def replace_optimizer(number, model, optimizer):
    return torch.optim.SGD(model.parameters(), lr=0.1) if number == WHEN else None


@torch.no_grad()
def clamp_data(number, model, optimizer):
    if number >= WHEN:
        model[2].weight.data.clamp_(-0.2, 0.2)


@torch.no_grad()
def decay(number, model, optimizer):
    if number >= WHEN:
        for parameter in model.parameters():
            parameter.mul_(0.99)


def hook_gradient(number, model, optimizer):
    if number == WHEN - 1:
        scale = torch.ones(6, 1)
        scale[1] = 3.0
        model[2].weight.register_hook(lambda gradient: gradient * scale)


HOOKED = (
    rf"[0-9.e-]+ of the gradient of 2.weight at step {WHEN} is not in the recorded slots: the weight is used elsewhere "
    rf"too, a path was not recorded, or the gradient was edited \(from step {WHEN} on\)."
)
MOVED = f"weights were changed outside the optimizer's update, after that of step {WHEN}."
AFTER = WHEN + 1
MOMENTUM = f"the optimizer's momentum_buffer of 2.weight was replaced before step {AFTER} \\(from step {AFTER} on\\)."
CASES = {
    "rolled back to the best": (Best, WHEN, WHEN, MOVED),
    "state loaded": (LoadState, AFTER, AFTER, MOMENTUM),
    "optimizer replaced": (lambda: replace_optimizer, WHEN, AFTER, MOVED.replace(str(WHEN), str(AFTER))),
    "clamped through data": (lambda: clamp_data, WHEN, WHEN, MOVED),
    "gradient hooked": (lambda: hook_gradient, WHEN, WHEN, HOOKED),
}


@pytest.mark.parametrize(("what", "before", "since", "reason"), CASES.values(), ids=CASES)
def test_weights_moved_outside_the_record_are_off_since_that_step(tmp_path, what, before, since, reason):
    trained = train(tmp_path / "m", between=what())
    found, measured = status_of(trained), trained.measured("2")
    assert (found.name, found.since) == ("approximate", since)
    assert re.fullmatch(reason, found.reason)
    assert measured > EXACT
    assert found.error == pytest.approx(measured, rel=0.7)
    reconstruction = trained.engine.verify()["2"]
    assert reconstruction.reconstruction_error == pytest.approx(measured, rel=1e-4)
    assert not reconstruction.exact
    assert not trained.engine.info().layers[1].exact
    assert status_of(trained, at_step=before).name == "exact"
    assert trained.measured("2", before) < EXACT
    assert status_of(trained, at_step=since + 1).name == "approximate"
    with pytest.raises(Inexact):
        required(trained, "2", since + 1)


def test_weights_that_are_overwritten_at_the_end(tmp_path):
    def average(model):
        model.load_state_dict({name: 0.8 * own for name, own in model.state_dict().items()})

    trained = train(tmp_path / "m", at_end=average)
    found = status_of(trained)
    assert (found.name, found.since) == ("approximate", STEPS - 1)
    assert found.error == pytest.approx(trained.measured("2"), rel=0.7)
    assert found.reason == f"weights were changed outside the optimizer's update, after that of step {STEPS - 1}."
    assert status_of(trained, at_step=STEPS - 1).name == "exact"


def test_steps_so_small_that_float32_loses_them(tmp_path):
    model = nn.Sequential(nn.Linear(5, 3))
    with torch.no_grad():
        model[0].weight.add_(16.0)
    trained = train(tmp_path / "m", model=model, lr=2e-6, momentum=0.0, steps=200)
    found, measured = status_of(trained, "0"), trained.measured("0", 200)
    assert measured > 10 * EXACT
    assert (found.name, found.since, found.reason) == ("approximate", None, "float32 rounding of small steps.")
    assert found.error == pytest.approx(measured, rel=0.7)
    assert found.rounding < found.error


@pytest.mark.parametrize(
    ("lr", "said"),
    [
        (1e-6, r"its weights moved in small steps: float32 rounding alone may account for .*"),
        (3e-8, r"its weights moved less than rounding: float32 rounding alone may account for .*"),
        (1e-12, r"its weights did not move: each of its updates was smaller than their rounding\."),
    ],
)  # fmt: skip
def test_weights_that_moved_less_than_their_rounding_are_exact_for_a_reason(tmp_path, lr, said):
    trained = train(tmp_path / "m", lr=lr, steps=8)
    found = status_of(trained, "0", 8)
    assert found.name == "exact"
    assert found.rounding >= found.error > EXACT
    assert re.fullmatch(said, found.reason)
    reconstruction = trained.engine.verify()["0"]
    assert (reconstruction.exact, reconstruction.reason) == (True, found.reason)


def test_what_moved_outside_the_record_stands_at_the_end(tmp_path):
    trained = train(tmp_path / "m", between=decay)
    view = trained.engine._view
    layer, whole = view.snapshot.layer("4"), every_slot(view)
    assert status_of(trained, "4").error > 0.1
    with pytest.raises(
        Inexact, match=rf"^Layer '4' cannot be reconstructed exactly from step {WHEN} on: weights were changed"
    ):
        rebuild(view, layer, whole, None, False, lambda: None)
    found = rebuild(view, layer, whole, None, True, lambda: None)
    live = trained.history[-1]
    np.testing.assert_allclose(found.weight, live["4.weight"].double().numpy(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.bias, live["4.bias"].double().numpy(), rtol=0, atol=1e-9)
    assert found.unrecorded_change == pytest.approx(trained.engine.verify()["4"].reconstruction_error, rel=1e-12)
    masked = rebuild(view, layer, {"4": mask.selection(view, layer, "sample >= 8")}, None, True, lambda: None)
    per_step = view.coefficients(layer, "4.weight", None).per_step[0]
    keys, values = view.snapshot.keys("4").entry_block(0, 8), view.snapshot.values("4").block(0, 8)
    removed = per_step * values.astype(float).T @ keys.astype(float)
    np.testing.assert_allclose(masked.weight, live["4.weight"].double().numpy() - removed, rtol=0, atol=1e-9)
    queries = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    with pytest.raises(Inexact):
        trained.engine.contributions("4", queries, "label")
    brought = trained.engine.contributions("4", queries, "label", allow_inexact=True)
    assert not brought.status.exact
    np.testing.assert_allclose(brought.output, queries @ live["4.weight"].numpy().T + live["4.bias"].numpy(), atol=1e-5)
    of_bias = brought.unexplained - brought.unrecorded_change
    np.testing.assert_allclose(of_bias[0], of_bias[1], atol=1e-6)
    assert np.abs(brought.unrecorded_change).max() > 0.1
    earlier = rebuild(view, layer, whole, WHEN, True, lambda: None)
    assert (earlier.status.name, earlier.unrecorded_change) == ("exact", 0.0)
    np.testing.assert_allclose(earlier.weight, trained.history[WHEN]["4.weight"], rtol=0, atol=1e-5)


def test_a_small_departure_is_answered_at_the_end_and_refused_at_an_earlier_step(tmp_path):
    @torch.no_grad()
    def nudge(number, model, optimizer):
        if number == WHEN:
            model[2].weight[0, 0] += 0.02

    trained = train(tmp_path / "m", between=nudge)
    found = required(trained, "2")
    assert (found.name, found.since) == ("approximate", WHEN)
    assert EXACT < found.error < 0.1
    assert required(trained, "2", WHEN).name == "exact"
    with pytest.raises(Inexact, match=f"from step {WHEN} on") as caught:
        required(trained, "2", WHEN + 5)
    assert caught.value.hint == f"Pass at_step={WHEN} or less, or allow_inexact=True."
    assert required(trained, "2", WHEN + 5, allow_inexact=True).name == "approximate"
    queries = np.ones((1, 7), np.float32)
    with torch.no_grad():
        live = trained.model[2](torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(trained.engine.output("2", queries), live, rtol=0, atol=1e-5)


def test_a_gradient_that_is_not_quite_explained_is_no_verdict(tmp_path):
    def edit_once(model, optimizer, backward):
        backward()
        if len(optimizer.state) == 0:
            model[2].weight.grad[0] *= 1.0 + 1e-3
        optimizer.step()

    trained = train(tmp_path / "m", update=edit_once)
    defects = trained.engine._view.snapshot.table("defects").to_pylist()
    assert [(row["layer"], row["step"]) for row in defects] == [("2", 0)]
    assert status_of(trained).name == "exact"
    assert trained.measured("2") < EXACT


def in_bfloat16(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


def test_weights_of_a_float64_training_are_float64_and_say_what_the_record_holds(tmp_path):
    reason = "float64 weights; keys and error signals are stored in float32."
    trained = train(tmp_path / "m", model=small_net().double(), forward=lambda model, x: model(x.double()))
    for name, reconstruction in trained.engine.verify().items():
        assert reconstruction.exact, name
        assert reconstruction.reason == reason, name
    for at_step, where, room in ((STEPS, None, 1e-7), (WHEN, None, 1e-7), (None, "label >= 0", 1e-7)):
        found = trained.engine.weights(at_step=at_step, where=where)
        assert {status.reason for status in found.statuses.values()} == {reason}
        expected = trained.history[STEPS if at_step is None else at_step]
        for name, weight in found.items():
            assert weight.dtype == expected[name].dtype == torch.float64, name
            moved = (expected[name] - trained.history[0][name]).norm()
            assert (weight - expected[name]).norm() <= room * moved, name
    assert all(torch.equal(own, trained.history[0][name]) for name, own in trained.engine.weights(at_step=0).items())


def test_an_undisturbed_training_is_exact_as_of_every_step(tmp_path):
    trained = train(tmp_path / "m", weight_decay=0.1, nesterov=True)
    for layer in ("0", "2", "4"):
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


def test_an_estimate_below_a_bound_may_be_found_above_it(tmp_path):
    for forward, cases in (
        (in_bfloat16, ((0.9e-3, "exact"), (1.1e-3, "exact to bfloat16"), (9e-3, "approximate"))),
        (None, ((1.1e-3, "approximate"),)),
    ):
        with train(tmp_path / str(forward is None), forward=forward, steps=2).engine as engine:
            view = engine._view
            layer = view.snapshot.layer("2")
            for found, name in cases:
                misses = [BlockDistance(block, found, 1.0, 0.0) for block in layer.parameters]
                reconstruction = _confirmed(view, found, misses, Status("exact", 0.8e-3, 0.0))
                assert (reconstruction.reconstruction_error, reconstruction.status.name) == (found, name)
                assert bool(reconstruction.status.reason) == (name == "approximate")
