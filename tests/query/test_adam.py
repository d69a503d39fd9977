"""A network trained by Adam or AdamW, from recorder to masked weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Cancelled
from dualform.query.weights.recorded_blocks import build
from dualform.query.where import mask
from dualform_service.server import Server
from tests.record.listed import batches, small_net, snapshot

STEPS = 40


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **({"lr": 3e-3, "weight_decay": 0.1} | options))


def record(path, make=adamw, steps=STEPS, loop=None, between=None, **options):
    """The trained model, and its parameters once so many steps were taken."""
    model = small_net()
    optimizer = make(model, **options)
    history = [snapshot(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(steps)):
            with recorder.step(label=y, sample=np.arange(8)):
                (loop or plain)(model, optimizer, x, y, number)
            if between is not None:
                between(number, model)
            history.append(snapshot(model))
    return model, history


def plain(model, optimizer, x, y, number):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def closure(model, optimizer, x, y, number):
    def closed():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert optimizer.step(closed) > 0


def accumulated(model, optimizer, x, y, number):
    cross_entropy(model(x), y).backward()
    if number % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()


def clipped(model, optimizer, x, y, number):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def scheduled(model, optimizer, x, y, number):
    for group in optimizer.param_groups:
        group.update(lr=0.01 / (1 + number), betas=(0.5 + number / 100, 0.99), eps=1e-6)
    plain(model, optimizer, x, y, number)


class Scaled:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)

    def __call__(self, model, optimizer, x, y, number):
        optimizer.zero_grad()
        self.scaler.scale(cross_entropy(model(x), y)).backward()
        if number in (3, 20):  # as an overflow: the scaler skips this update
            model[0].weight.grad[0, 0] = torch.inf
        self.scaler.step(optimizer)
        self.scaler.update()


def in_groups(model, **options):
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.3}, {"params": biases, "lr": 1e-3, "betas": (0.8, 0.9)}], lr=3e-3
    )


def coupled(model, **options):
    return torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=0.1)


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
        certificates = memory.verify()
        for layer in memory.info().layers:
            certificate = certificates[layer.name]
            assert layer.grade.name == "exact", layer.grade.reason
            assert certificate.exact
            assert certificate.relative_error <= 1e-5
            assert layer.grade.error == pytest.approx(certificate.relative_error, rel=0.3, abs=1e-8)
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


def naive(memory, parameter, layer, where, beta=(0.9, 0.999), lr=3e-3, decay=0.1):
    """AdamW over the stored slots, update by update; the gradients of slots that are masked go into v alone."""
    stays = np.zeros(memory.info().layers[0].slots, bool)
    stays[np.asarray(memory.sql(f"SELECT slot FROM slots WHERE {where}")["slot"], dtype=int)] = True
    keys, values = memory.keys(layer).astype(float), memory.values(layer).astype(float)
    steps = np.repeat(np.arange(len(stays) // 8), 8)
    w = memory._view.stored_weights("initial")[parameter].astype(float)
    kept, m, kept_m, v = w.copy(), 0.0, 0.0, 0.0
    for t in range(1, steps[-1] + 2):
        grads = []
        for own in (steps == t - 1, (steps == t - 1) & stays):
            grads.append(values[own].sum(0) if w.ndim == 1 else values[own].T @ keys[own])
        m, kept_m = beta[0] * m + (1 - beta[0]) * grads[0], beta[0] * kept_m + (1 - beta[0]) * grads[1]
        v = beta[1] * v + (1 - beta[1]) * grads[0] ** 2
        scale = lr / (1 - beta[0] ** t) / (np.sqrt(v / (1 - beta[1] ** t)) + 1e-8)
        w, kept = (1 - lr * decay) * w - scale * m, (1 - lr * decay) * kept - scale * kept_m
    return kept


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("adam") / "m"
    model, _ = record(path)
    return path, model


@pytest.fixture(scope="module")
def opened(trained):
    """One engine for all examples: each would start a process for its SQL."""
    with dualform.open(trained[0]) as memory:
        yield memory


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, STEPS - 1), label=st.integers(0, 2))
def test_masked_weights_are_those_of_a_plain_loop_and_shares_add_up(opened, cut, label):
    where = f"step < {cut} OR label = {label}"
    found, others = opened.weights(where), opened.weights(f"NOT ({where})")
    whole, standing = opened.weights(), {}
    view = opened._view
    for layer in view.snapshot.layers.values():
        none = mask.selection(view, layer, "label > 9")
        standing |= build(view, layer, none, None, lambda: None)
    for name in whole:
        np.testing.assert_allclose(found[name], naive(opened, name, name[0], where), rtol=1e-4, atol=2e-6)
        together = found[name].double() + others[name].double() - torch.from_numpy(standing[name])
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
        with pytest.raises(dualform.DualformError, match="AdamW gives a slot no coefficient"):
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


@pytest.mark.parametrize("state", ["kept", "lost", "another"])
def test_a_resumed_training_is_one_memory(tmp_path, state):
    model = small_net()
    optimizer, history = adamw(model), [snapshot(model)]
    for run in range(2):
        with dualform.Recorder(model, optimizer, tmp_path / str(run)) as recorder:
            for x, y in batches(24)[12 * run : 12 * run + 12]:
                with recorder.step(label=y):
                    plain(model, optimizer, x, y, 0)
                history.append(snapshot(model))
        before = copy.deepcopy(optimizer.state_dict())
        model = copy.deepcopy(model)
        optimizer = adamw(model)
        if state != "lost":
            optimizer.load_state_dict(before)
        if state == "another":
            for own in optimizer.state.values():
                own["exp_avg_sq"].mul_(0.5)
    with dualform.open([tmp_path / "0", tmp_path / "1"]) as memory:
        grade = memory.info().layers[0].grade
        if state == "kept":
            assert grade.name == "exact"
            for at_step in (5, 12, 20, 24):
                for name, value in memory.weights(at_step=at_step).items():
                    np.testing.assert_allclose(value, history[at_step][name], rtol=1e-4, atol=2e-6)
        else:
            kind = "exp_avg" if state == "lost" else "exp_avg_sq"
            assert (grade.name, grade.since, grade.error) == ("off", 12, None)
            assert f"did not begin with the {kind} that run 0" in grade.reason


def test_buffers_that_are_cleared_while_training_are_the_reason(tmp_path):
    def loop(model, optimizer, x, y, number):
        if number == 20:
            optimizer.state.clear()
        plain(model, optimizer, x, y, number)

    record(tmp_path / "m", loop=loop)
    with dualform.open(tmp_path / "m") as memory:
        grade = memory.info().layers[0].grade
        assert grade.name == "off"
        assert grade.reason == "the optimizer's exp_avg of 0.weight was cleared before step 20 (from step 20 on)."
        assert memory.verify()["0"].relative_error == pytest.approx(grade.error, rel=0.3)


@pytest.mark.parametrize("amount", [1e-3, 1e-2])
def test_weights_that_are_moved_by_hand_date_the_departure(tmp_path, amount):
    def nudge(number, model):
        if number == 25:
            with torch.no_grad():
                model[2].weight.add_(amount * torch.randn(6, 7))

    record(tmp_path / "m", between=nudge)
    with dualform.open(tmp_path / "m") as memory:
        grades = {layer.name: layer.grade for layer in memory.info().layers}
        assert (grades["2"].name, grades["2"].since) == ("off", 25)
        assert grades["2"].reason.startswith("weights were changed outside the optimizer's update")
        assert (grades["0"].name, grades["4"].name) == ("exact", "exact")


def test_noise_of_one_step_is_what_rounding_makes(tmp_path):
    """One-step distances lie below what the twin says of them, by no more than a few orders of magnitude."""
    record(tmp_path / "m", steps=100)
    with dualform.open(tmp_path / "m") as memory:
        table = memory._view.snapshot.table("watch")
        shares = np.array(table["one_step"]) / np.array(table["noise"])
        assert shares.max() < 4
        assert np.median(shares) > 0.05


def test_an_eps_of_zero_warns_of_nothing(tmp_path):
    """A warning would fail the test. Gradients that are 0 leave their weights to 0 / 0, as they leave torch's."""
    record(tmp_path / "m", eps=0.0)
    with dualform.open(tmp_path / "m") as memory:
        memory.weights("label = 1", allow_inexact=True)
        memory.verify()


def test_a_memory_that_is_still_recorded_is_not_said_to_be_cut_off(tmp_path):
    model = small_net()
    optimizer = adamw(model)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for x, y in batches(5):
            with recorder.step(label=y):
                plain(model, optimizer, x, y, 0)
        recorder.flush()
        with dualform.open(tmp_path / "m") as memory:
            reason = memory.verify()["0"].grade.reason
            assert reason == "there are no final weights: the recording was cut off, or still runs."


def test_squares_that_underflow_are_not_said_to_be_written_weights(tmp_path):
    def tiny(model, optimizer, x, y, number):
        optimizer.zero_grad()
        (cross_entropy(model(x), y) * 1e-18).backward()
        optimizer.step()

    record(tmp_path / "m", loop=tiny, eps=1e-30)
    with dualform.open(tmp_path / "m") as memory:
        grade = memory.info().layers[0].grade
        assert grade.name == "off"
        assert grade.reason == f"AdamW's update of step {grade.since} was not what its rule makes of the record."
