"""Networks trained by Adam and torch's other optimizers, from recorder to masked weights."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn, optim
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Cancelled, Inexact, RecordingError
from dualform.query.view import Cache, never
from dualform.query.weights import trajectory
from dualform.query.weights.cancellation import _figures
from dualform.query.weights.trajectory import build, every_slot
from dualform.query.where import mask
from dualform.query.where.mask import Selection
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
from tests.record.listed import batches, small_net, snapshot
from tests.trainings import learn, record_steps

FEW_STEPS = 20
KINDS = {
    "amsgrad, fused": (optim.AdamW, {"lr": 3e-3, "amsgrad": True, "fused": True}),
    "nadam": (optim.NAdam, {"lr": 3e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rmsprop, momentum": (optim.RMSprop, {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "adagrad": (optim.Adagrad, {"lr": 5e-2, "lr_decay": 0.05, "initial_accumulator_value": 0.1, "foreach": True}),
    "rprop": (optim.Rprop, {"lr": 1e-3}),
    "adafactor": (optim.Adafactor, {"lr": 1e-2, "weight_decay": 0.1}),
}


def record_way(path, way, before=0):
    """The parameters once so many steps were recorded; `before`: updates that were not."""
    model, (kind, options) = small_net(), KINDS[way]
    optimizer = kind(model.parameters(), **options)
    for x, y in batches(before, seed=2):
        learn(optimizer, cross_entropy(model(x), y))
    history = [snapshot(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(FEW_STEPS)):
            optimizer.param_groups[0]["lr"] = options["lr"] / (1 + number / 20)
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y))
            history.append(snapshot(model))
    return history


@pytest.fixture(scope="module", params=KINDS)
def recorded(request, tmp_path_factory):
    """A memory, and the parameters at each step of its training; three updates came before."""
    path = tmp_path_factory.mktemp("optimizers") / "m"
    history = record_way(path, request.param, before=3)
    with dualform.open(path) as memory:
        yield memory, history


def test_the_record_of_any_optimizer_rebuilds_the_weights(recorded):
    memory, history = recorded
    for layer, found in some(memory.verify().items()):
        assert found.reconstruction_error <= 1e-5, layer
        assert found.exact
    for at_step in (0, 1, 17, FEW_STEPS):
        found = memory.weights(at_step=at_step, allow_inexact=at_step in (1, 17))  # Adafactor is not watched
        for parameter, weight in history[at_step].items():
            assert found[parameter].numpy() == pytest.approx(weight, abs=2e-6)


def test_the_shares_of_masks_add_up_to_the_whole(recorded):
    memory, _ = recorded

    def of(where):
        return memory.weights(where)["2.weight"].double()

    whole, parts = of(None), [of(f"label = {label}") for label in range(3)]
    rests = [of(f"label <> {label}") for label in range(3)]
    # What no slot brought, W_0 above all, stands in each answer once.
    twice = [part + rest for part, rest in zip(parts, rests, strict=True)]
    close = 1e-6 * max(float(one.abs().max()) for one in (*parts, *rests))
    assert all(torch.allclose(one, twice[0], rtol=0, atol=2 * close) for one in twice)
    assert torch.allclose(sum(parts), 2 * twice[0] - whole, rtol=0, atol=6 * close)
    assert all(float((part - whole).norm()) > 0.01 * float(whole.norm()) for part in parts)


def record_plainly(path, model, optimizer, steps):
    with dualform.Recorder(model, optimizer, path) as recorder:
        for x, y in batches(steps):
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y))


def test_a_weight_is_run_again_in_pieces_as_it_is_whole(tmp_path, monkeypatch):
    """The state begins without what the first update brings."""
    record_way(tmp_path / "m", "amsgrad, fused")
    answers = []
    for piece in (1 << 15, 11):
        monkeypatch.setattr(trajectory, "_PIECE", piece)
        with dualform.open(tmp_path / "m") as memory:
            answers.append([memory.weights(where) for where in (None, "label = 1")])
    for one, other in some(zip(*answers, strict=True)):
        for name, weight in one.items():
            assert torch.equal(weight, other[name])


class Attending(nn.Module):
    """q, k and v are blocks of one parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        x = x[:, :, None].expand(-1, -1, 4)
        return self.head(self.attention(x, x, x)[0].mean(1))


def test_a_rule_of_whole_matrices_does_not_answer_for_a_part_of_one(tmp_path):
    model = Attending()
    record_plainly(tmp_path / "m", model, optim.Adafactor(model.parameters()), 3)
    with dualform.open(tmp_path / "m") as memory:
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert statuses["attention.q"].name == "scores only"
        assert "Adafactor is run again on whole parameters, of which this layer stands for a part" in (
            statuses["attention.q"].reason
        )
        reconstructions = memory.verify()
        assert reconstructions["attention.q"].reconstruction_error is None
        assert reconstructions["head"].exact
        assert memory.topk("attention.q", np.ones(4, np.float32), k=1).ids.shape == (1,)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (optim.LBFGS, "LBFGS: its line search takes several gradients in one update."),
        (optim.SparseAdam, "SparseAdam: it moves only the rows of a sparse gradient"),
    ],
)
def test_optimizers_that_cannot_be_followed_are_refused_where_recording_starts(tmp_path, kind, why):
    model = small_net()
    with pytest.raises(RecordingError, match=f"cannot follow the updates of {why}") as refused:
        dualform.Recorder(model, kind(model.parameters()), tmp_path / "m")
    assert "values=False" in refused.value.hint
    assert not (tmp_path / "m").exists()
    dualform.Recorder(model, kind(model.parameters()), tmp_path / "m", values=False)


MUON_STEPS, WHEN = 24, 12


def train_by_two(path, between=None, decay=0.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    weights, biases = ([p for p in model.parameters() if p.ndim == axes] for axes in (2, 1))
    optimizers = [optim.Muon(weights, lr=0.02), optim.AdamW(biases, lr=1e-4, weight_decay=decay)]
    with dualform.Recorder(model, optimizers, path) as recorder:
        for step in range(MUON_STEPS):
            x, y = torch.randn(16, 16), torch.randint(0, 4, (16,))
            with recorder.step(label=y):
                model.zero_grad()
                cross_entropy(model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            if between is not None and step == WHEN:
                with torch.no_grad():
                    between(model)
    return dualform.open(path)


def test_blocks_that_moved_by_their_rules_make_an_exact_layer(tmp_path):
    with train_by_two(tmp_path / "m") as memory:
        for found in some(memory.verify().values()):
            assert (found.status.name, found.status.reason, found.status.since) == ("exact to bfloat16", "", None)
            assert 0 < found.reconstruction_error < 2.0**-7
        with pytest.raises(Inexact, match="Muon was not watched while training"):
            memory.weights(at_step=WHEN)


def test_a_watched_bias_that_was_moved_by_hand_is_off_since_then_and_an_unwatched_weight_is_named(tmp_path):
    """The bias goes a hundredth of its layer's way, so that the error of all of the layer shows nothing."""

    def nudge(model):
        model[0].bias.add_(1e-3 * torch.randn(24))
        model[2].weight.mul_(1.1)

    reason = f"weights were changed outside the optimizer's update, after that of step {WHEN} (from step {WHEN} on)."
    with train_by_two(tmp_path / "m", nudge) as memory:
        found = memory.verify()
        bias, weight = found["0"].status, found["2"].status
        assert found["0"].reconstruction_error < 2.0**-7
        assert (bias.name, bias.since, bias.reason) == ("approximate", WHEN, reason)
        assert bias.error == found["0"].reconstruction_error
        assert weight.name == "approximate"
        assert weight.reason.startswith("the record misses 2.weight by ")
        assert weight.reason.endswith(" of the distance it moved; Muon was not watched.")
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert (statuses["0"].since, statuses["0"].reason, statuses["0"].error) == (WHEN, reason, None)
        assert "Muon was not watched" in statuses["2"].reason
        assert memory.output("0", torch.zeros(1, 16).numpy()).status == bias
        with pytest.raises(Inexact, match="changed outside"):
            memory.output("0", torch.zeros(1, 16).numpy(), at_step=WHEN + 1)


NAMES = {"0": 35, "2": 42, "4": 18}
"""Entries of each layer's weight, of tests.record.listed.small_net."""


def oracle(masked: np.ndarray, whole: np.ndarray, initial: np.ndarray) -> tuple[float, float]:
    """By sorting, of flat float64 vectors."""
    moves = np.abs(masked - whole)
    squares = np.sort(moves**2)[::-1]
    few = -(-len(squares) // 100)
    return float(squares[:few].sum() / squares.sum()), float(moves.max() / np.linalg.norm(whole - initial))


def test_the_figures_are_those_of_a_plain_loop(by_adamw):
    where = "label <> 1"
    with dualform.open(by_adamw[0]) as memory:
        found = memory.cancellation(where)
        assert list(found.concentrations) == list(NAMES)
        for layer, one in found.concentrations.items():
            names = [f"{layer}.weight", f"{layer}.bias"]
            masked, whole = (
                np.concatenate([naive(memory, name, layer, mask).reshape(-1) for name in names])
                for mask in (where, "label >= 0")
            )
            initial = np.concatenate([by_adamw[2][0][name].reshape(-1) for name in names])
            share, greatest = oracle(masked, whole, initial)
            assert one.share == pytest.approx(share, rel=1e-5)
            assert one.greatest == pytest.approx(greatest, rel=1e-5)


def test_a_mask_that_leaves_all_moves_nothing(by_adamw):
    with dualform.open(by_adamw[0]) as memory:
        one = memory.cancellation("label >= 0", layer="0").concentrations["0"]
        assert math.isnan(one.share)
        assert one.greatest == 0
        assert math.isnan(memory.cancellation("label = 1", at_step=0).concentrations["0"].share)


def test_the_whole_and_what_stays_wait_for_no_one_who_waits_for_them(monkeypatch):
    """Two questions about one mask, where neither finds the other's weights held: as those of a large network."""
    wanted, found = (np.ones((2, 3)), np.zeros((2, 3))), dict[bool, np.ndarray]()
    monkeypatch.setattr(trajectory, "_run", lambda *_: time.sleep(0.2) or wanted)
    view, block = SimpleNamespace(cache=Cache(1)), SimpleNamespace(block_name="0.weight", transposed=False)
    holder = SimpleNamespace(name="0"), block, Selection("label = 1", np.array([True, False]))

    def ask(whole):
        found[whole] = trajectory.trajectory(view, block, [holder], None, never, whole=whole)

    asking = [threading.Thread(target=ask, args=[whole], daemon=True) for whole in (False, True)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(60)
    assert found[True] is wanted[0]
    assert found[False] is wanted[1]


def test_the_whole_beside_a_mask_takes_no_pass_of_its_own(by_adamw, monkeypatch):
    passes = []
    run = trajectory._run
    monkeypatch.setattr(
        trajectory, "_run", lambda view, block, *more: passes.append(block.block_name) or run(view, block, *more)
    )
    with dualform.open(by_adamw[0]) as memory:
        masked = memory.weights("label <> 1")
        assert len(passes) == 6
        memory.cancellation("label <> 1")
        assert len(passes) == 6
        whole = memory.weights()
    with dualform.open(by_adamw[0]) as memory:
        assert all(torch.equal(own, whole[name]) for name, own in memory.weights().items()), "in a run of its own"
        memory.cancellation("label <> 1")
        assert all(torch.equal(own, masked[name]) for name, own in memory.weights("label <> 1").items())


def test_masks_of_two_spaces_and_a_block_that_layers_share(tmp_path):
    """The figures are of the weights that the same masks leave."""
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Tanh(), head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    initial = embedding.weight.detach().clone().double()
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", spaces={"0": "read", "2": "said"}),
        optimizer,
        (torch.randint(9, (3, 5), generator=torch.Generator().manual_seed(step)) for step in range(12)),
        lambda tokens: nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 9), tokens[:, 1:].reshape(-1)),
        label=[0, 1, 2],
    )
    with dualform.open(tmp_path / "m") as memory:
        masks = {"read": "label <> 1"}
        found = memory.cancellation(masks).concentrations
        assert list(found) == ["0"], "nothing was asked of the other space"
        masked, whole = (memory.weights(where)["0.weight"].double() for where in (masks, None))
    share, greatest = oracle(*(one.numpy().reshape(-1) for one in (masked, whole, initial)))
    assert found["0"].share == pytest.approx(share, rel=1e-3)
    assert found["0"].greatest == pytest.approx(greatest, rel=1e-3)


@given(st.integers(1, 300), st.integers(0, 99), st.sampled_from([1.0, 1e200]), st.floats(1e-3, 1e3))
def test_figures_of_any_moves(count, seed, size, way):
    moves = size * np.random.default_rng(seed).lognormal(0, 3, count)
    found = _figures(moves, way)
    squares = np.sort((moves / moves.max()) ** 2)[::-1]
    assert found.share == pytest.approx(squares[: math.ceil(count / 100)].sum() / squares.sum())
    assert found.greatest == pytest.approx(moves.max() / way)


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
