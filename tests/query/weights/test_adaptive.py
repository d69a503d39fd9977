"""Networks trained by Adam and torch's other optimizers, from recorder to masked weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Cancelled
from dualform.query.weights.trajectory import build, every_slot
from dualform.query.where import mask
from tests.cases import some
from tests.query.adam_trainings import (
    STEPS,
    Scaled,
    accumulated,
    adamw,
    clipped,
    closure,
    coupled,
    in_groups,
    naive,
    plain,
    record,
    scheduled,
)
from tests.record.listed import batches
from tests.trainings import learn

WAYS = {
    "adam, by a closure": {"make": coupled, "loop": closure},
    "groups, accumulated": {"make": in_groups, "loop": accumulated},
    "foreach, clipped": {"foreach": True, "loop": clipped},
    "maximize, a tensor as rate, scheduled": {"maximize": True, "lr": torch.tensor(3e-3), "loop": scheduled},
    "a grad scaler that skips updates": {"fused": True, "loop": Scaled()},
}


def assert_rebuilt(path, history):
    with dualform.open(path) as memory:
        reconstructions = memory.verify()
        for layer in memory.info().layers:
            reconstruction = reconstructions[layer.name]
            assert layer.status.name == "exact", layer.status.reason
            assert reconstruction.exact
            assert reconstruction.reconstruction_error <= 1e-5
            assert layer.status.error == pytest.approx(reconstruction.reconstruction_error, rel=0.3, abs=1e-8)
        for at_step in (0, 1, 7, len(history) - 1):
            for name, value in memory.weights(at_step=at_step).items():
                way = np.linalg.norm(history[-1][name] - history[0][name])
                assert np.linalg.norm(value.double().numpy() - history[at_step][name]) <= 1e-5 * way + 1e-7, name


@pytest.mark.parametrize("way", WAYS)
def test_the_record_rebuilds_the_weights_at_any_step(tmp_path, way):
    _, history = record(tmp_path / "m", **WAYS[way])
    assert_rebuilt(tmp_path / "m", history)


def test_what_was_trained_before_the_recording_stands(tmp_path):
    def trained(model):
        optimizer = adamw(model)
        for x, y in batches(9, seed=5):
            plain(model, optimizer, x, y, 0)
        return optimizer

    _, history = record(tmp_path / "m", make=trained)
    assert_rebuilt(tmp_path / "m", history)
    with dualform.open(tmp_path / "m") as memory:
        # Masked, what is left of the momentum from before still moves the weights after the first update.
        left = memory.weights("step > 30", at_step=2)
        assert set(memory._view.snapshot.buffers()["0.weight"]) == {"exp_avg", "exp_avg_sq", "step"}
        decayed = history[0]["0.weight"] * (1 - 3e-4) ** 2
        assert float(np.abs(left["0.weight"].numpy() - decayed).max()) > 1e-3


@pytest.fixture(scope="module")
def opened(by_adamw):
    """One engine for all examples: each would start a process for its SQL."""
    with dualform.open(by_adamw[0]) as memory:
        yield memory


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, STEPS - 1), label=st.integers(0, 2))
def test_masked_weights_are_those_of_a_plain_loop_and_shares_add_up(opened, cut, label):
    where = f"step < {cut} OR label = {label}"
    found, others = opened.weights(where), opened.weights(f"NOT ({where})")
    whole, unrecorded_change = opened.weights(), {}
    view = opened._view
    for layer in view.snapshot.layers.values():
        none = mask.selection(view, layer, "label > 9")
        unrecorded_change |= build(view, layer, {layer.name: none}, None, lambda: None)
    for name in some(whole):
        np.testing.assert_allclose(found[name], naive(opened, name, name[0], where), rtol=1e-4, atol=2e-6)
        together = found[name].double() + others[name].double() - torch.from_numpy(unrecorded_change[name])
        np.testing.assert_allclose(together, whole[name].double(), rtol=1e-5, atol=1e-6)


def test_outputs_are_those_of_the_weights_and_of_the_live_network(by_adamw, opened):
    queries = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    with torch.no_grad():
        live = by_adamw[1][0](torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(opened.output("0", queries), live, rtol=1e-5, atol=1e-6)
    masked = opened.weights("label <> 1")
    expected = queries @ masked["0.weight"].numpy().T + masked["0.bias"].numpy()
    np.testing.assert_allclose(opened.output("0", queries, where="label <> 1"), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(dualform.DualformError, match="this run used AdamW"):
        opened.coefficients("0", [0])


def test_a_trajectory_is_cached_and_can_be_cancelled(by_adamw):
    def check():
        raise Cancelled("nobody waits.")

    with dualform.open(by_adamw[0]) as memory:
        view = memory._view
        layer = view.snapshot.layer("0")
        whole = every_slot(view)
        with pytest.raises(Cancelled):
            build(view, layer, whole, None, check)
        first = build(view, layer, whole, None, lambda: None)
        assert build(view, layer, whole, None, check)["0.weight"] is first["0.weight"]


def test_buffers_that_are_cleared_while_training_are_the_reason(tmp_path):
    def loop(model, optimizer, x, y, number):
        if number == 20:
            optimizer.state.clear()
        plain(model, optimizer, x, y, number)

    record(tmp_path / "m", loop=loop)
    with dualform.open(tmp_path / "m") as memory:
        status = memory.info().layers[0].status
        assert status.name == "approximate"
        assert status.reason == "the optimizer's exp_avg of 0.weight was cleared before step 20 (from step 20 on)."
        assert memory.verify()["0"].reconstruction_error == pytest.approx(status.error, rel=0.3)


def test_noise_of_one_step_is_what_rounding_makes(opened):
    """One-step distances lie below what the twin says of them, by no more than a few orders of magnitude."""
    table = opened._view.snapshot.table("watch")
    shares = np.array(table["one_step"]) / np.array(table["noise"])
    assert shares.max() < 4
    assert np.median(shares) > 0.05


def test_an_eps_of_zero_warns_of_nothing(tmp_path):
    """A warning would fail the test. Gradients that are 0 leave their weights to 0 / 0, as they leave torch's."""
    record(tmp_path / "m", eps=0.0)
    with dualform.open(tmp_path / "m") as memory:
        memory.weights("label = 1", allow_inexact=True)
        memory.verify()


def test_squares_that_underflow_are_not_said_to_be_written_weights(tmp_path):
    def tiny(model, optimizer, x, y, number):
        learn(optimizer, cross_entropy(model(x), y) * 1e-18)

    record(tmp_path / "m", loop=tiny, eps=1e-30)
    with dualform.open(tmp_path / "m") as memory:
        status = memory.info().layers[0].status
        assert status.name == "approximate"
        assert status.reason == f"AdamW's update of step {status.since} was not what its rule makes of the record."
