"""A network trained by Adam or AdamW, from recorder to masked weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import dualform
from dualform.errors import Cancelled
from dualform.query.weights.trajectory import build
from dualform.query.where import mask
from dualform_service.server import Server
from tests.cases import some
from tests.record.listed import batches

from .adam_trainings import (
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

LOOPS = {"closure": closure, "accumulated": accumulated, "clipped": clipped, "scheduled": scheduled}
WAYS = {
    "adamw": {},
    "adam": {"make": coupled},
    "groups": {"make": in_groups},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "maximize": {"maximize": True},
    "tensor rate": {"lr": torch.tensor(3e-3)},
    **{name: {"loop": loop} for name, loop in LOOPS.items()},
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


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_grad_scaler_that_skips_updates(tmp_path, fused):
    _, history = record(tmp_path / "m", loop=Scaled(), fused=fused)
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
def trained(by_adamw):
    path, model, _ = by_adamw
    return path, model


@pytest.fixture(scope="module")
def opened(trained):
    """One engine for all examples: each would start a process for its SQL."""
    with dualform.open(trained[0]) as memory:
        yield memory


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, STEPS - 1), label=st.integers(0, 2))
def test_masked_weights_are_those_of_a_plain_loop_and_shares_add_up(opened, cut, label):
    where = f"step < {cut} OR label = {label}"
    found, others = opened.weights(where), opened.weights(f"NOT ({where})")
    whole, unrecorded_change = opened.weights(), {}
    view = opened._view
    for layer in view.snapshot.layers.values():
        none = mask.selection(view, layer, "label > 9")
        unrecorded_change |= build(view, layer, none, None, lambda: None)
    for name in some(whole):
        np.testing.assert_allclose(found[name], naive(opened, name, name[0], where), rtol=1e-4, atol=2e-6)
        together = found[name].double() + others[name].double() - torch.from_numpy(unrecorded_change[name])
        np.testing.assert_allclose(together, whole[name].double(), rtol=1e-5, atol=1e-6)


def test_outputs_are_those_of_the_weights_and_of_the_live_network(trained):
    path, model = trained
    queries = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    with dualform.open(path) as memory:
        with torch.no_grad():
            live = model[0](torch.from_numpy(queries)).numpy()
        np.testing.assert_allclose(memory.output("0", queries), live, rtol=1e-5, atol=1e-6)
        masked = memory.weights("label <> 1")
        expected = queries @ masked["0.weight"].numpy().T + masked["0.bias"].numpy()
        np.testing.assert_allclose(memory.output("0", queries, where="label <> 1"), expected, rtol=1e-5, atol=1e-6)


def test_a_server_gives_the_same_weights(trained):
    with dualform.open(trained[0]) as memory, Server(memory) as server, dualform.connect(server.address) as client:
        own, theirs = memory.weights("label <> 1", at_step=30), client.weights("label <> 1", at_step=30)
        assert all(torch.equal(own[name], theirs[name]) for name in own)
        with pytest.raises(dualform.DualformError, match="this run used AdamW"):
            memory.coefficients("0", [0])
        for asked in (memory, client):
            found = asked.cancellation("label = 1")
            assert dict(found) == {}
            assert list(found.concentrations) == ["0", "2", "4"]
        assert memory.cancellation("label = 1").concentrations == client.cancellation("label = 1").concentrations


def test_a_trajectory_is_cached_and_can_be_cancelled(trained, monkeypatch):
    def check():
        raise Cancelled("nobody waits.")

    with dualform.open(trained[0]) as memory:
        view = memory._view
        layer = view.snapshot.layer("0")
        whole = mask.selection(view, layer, None)
        with pytest.raises(Cancelled):
            build(view, layer, whole, None, check)
        first = build(view, layer, whole, None, lambda: None)
        assert build(view, layer, whole, None, check)["0.weight"] is first["0.weight"]
