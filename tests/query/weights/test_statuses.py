"""A status is what was measured: what happens to weights outside the record shows, with its step, and nothing else."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.answers import Status
from dualform.errors import Inexact
from dualform.query.weights import exactness
from dualform.query.weights.exactness import EXACT, BlockDistance, status
from dualform.query.weights.reconstruction import _confirmed, rebuild, require
from dualform.query.where import mask
from dualform.store.files.durable_files import checksum
from dualform.store.manifest import FILE, Manifest
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.query.trained import STEPS, WHEN, train
from tests.record.listed import batches, small_net
from tests.rules.own import Unruled
from tests.trainings import learn, record_steps

LAYERS = ("0", "2", "4")


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


def clear_state(number, model, optimizer):
    if number == WHEN:
        optimizer.state.clear()


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
MOMENTUM = f"the optimizer's momentum_buffer of 2.weight was {{}} before step {AFTER} \\(from step {AFTER} on\\)."
CASES = {
    "rolled back to the best": (Best, WHEN, WHEN, MOVED),
    "state cleared": (lambda: clear_state, AFTER, AFTER, MOMENTUM.format("cleared")),
    "state loaded": (LoadState, AFTER, AFTER, MOMENTUM.format("replaced")),
    "optimizer replaced": (lambda: replace_optimizer, WHEN, AFTER, MOVED.replace(str(WHEN), str(AFTER))),
    "clamped through data": (lambda: clamp_data, WHEN, WHEN, MOVED),
    "decayed": (lambda: decay, WHEN, WHEN, MOVED),
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


def test_an_average_that_overwrites_the_weights_at_the_end(tmp_path):
    class Average:
        def __call__(self, number, model, optimizer):
            new = copy.deepcopy(model.state_dict())
            old = getattr(self, "state", new)
            self.state = {name: 0.8 * old[name] + 0.2 * new[name] for name in new}

    average = Average()
    trained = train(tmp_path / "m", between=average, at_end=lambda model: model.load_state_dict(average.state))
    found = status_of(trained)
    assert (found.name, found.since) == ("approximate", STEPS - 1)
    assert found.error == pytest.approx(trained.measured("2"), rel=0.7)
    assert found.reason == f"weights were changed outside the optimizer's update, after that of step {STEPS - 1}."
    assert status_of(trained, at_step=STEPS - 1).name == "exact"


def test_steps_along_the_gradient_of_other_weights(tmp_path):
    def sharpness_aware(model, optimizer, backward):
        backward()
        moved = [(p, 0.05 * p.grad / (p.grad.norm() + 1e-6)) for p in model.parameters()]
        with torch.no_grad():
            for parameter, by in moved:
                parameter.add_(by)
        backward()
        with torch.no_grad():
            for parameter, by in moved:
                parameter.sub_(by)
        optimizer.step()

    trained = train(tmp_path / "m", update=sharpness_aware)
    for layer in LAYERS:
        found = status_of(trained, layer)
        assert (found.name, found.since) == ("exact", None)
        assert trained.measured(layer) <= 1e-5


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
    layer, whole = view.snapshot.layer("4"), mask.selection(view, view.snapshot.layer("4"), None)
    assert status_of(trained, "4").error > 0.1
    with pytest.raises(
        Inexact, match=r"^Layer '4' cannot be reconstructed exactly from step 20 on: weights were changed outside"
    ):
        rebuild(view, layer, whole, None, False, lambda: None)
    found = rebuild(view, layer, whole, None, True, lambda: None)
    live = trained.history[-1]
    np.testing.assert_allclose(found.weight, live["4.weight"].double().numpy(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.bias, live["4.bias"].double().numpy(), rtol=0, atol=1e-9)
    assert found.unrecorded_change == pytest.approx(trained.engine.verify()["4"].reconstruction_error, rel=1e-12)
    masked = rebuild(view, layer, mask.selection(view, layer, "sample >= 8"), None, True, lambda: None)
    per_step = view.coefficients(layer, "4.weight", None).per_step[0]
    keys, values = view.snapshot.keys("4").entry_block(0, 8), view.snapshot.values("4").block(0, 8)
    removed = per_step * values.astype(float).T @ keys.astype(float)
    np.testing.assert_allclose(masked.weight, live["4.weight"].double().numpy() - removed, rtol=0, atol=1e-9)
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
    with pytest.raises(Inexact, match="from step 20 on") as caught:
        required(trained, "2", WHEN + 5)
    assert caught.value.hint == "Pass at_step=20 or less, or allow_inexact=True."
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


def test_a_training_cut_off_is_graded_by_its_last_row(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")
    statuses = []
    with recorder:
        for x, y in batches(3):
            with recorder.step():
                learn(optimizer, nn.functional.cross_entropy(model(x), y))
            written = recorder._training.recording.batches
            written.put_logs()
            written.sink.flush()  # as a crash leaves it: nobody has looked at the last update
            with dualform.open(tmp_path / "m") as engine:
                statuses.append(status(engine._view, engine._view.snapshot.layer("2")))
    assert [found.name for found in statuses] == ["approximate", "exact", "exact"]
    assert statuses[0].reason == "the training was cut off before its weights were held against the record."
    assert str(statuses[0]) == "approximate"


def test_a_training_in_bfloat16_is_graded_as_such(tmp_path):
    def forward(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    trained = train(tmp_path / "m", forward=forward)
    for layer in LAYERS:
        found, measured = status_of(trained, layer), trained.measured(layer)
        assert found.name == ("exact" if measured < EXACT else "exact to bfloat16")
        assert found.error == pytest.approx(measured, rel=0.7)
        assert (found.since, found.reason) == (None, "")
    assert "exact to bfloat16" in {status_of(trained, layer).name for layer in LAYERS}
    queries = np.ones((1, 7), np.float32)
    with torch.no_grad():
        live = trained.model[2](torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(trained.engine.output("2", queries), live, rtol=0, atol=1e-5)


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


def test_gradients_that_are_clipped_by_value_are_named(tmp_path):
    bound = 0.01

    def update(model, optimizer, backward):
        backward()
        nn.utils.clip_grad_value_(model.parameters(), bound)
        optimizer.step()

    trained = train(tmp_path / "m", update=update)
    for layer in LAYERS:
        found = status_of(trained, layer)
        assert found.name == "approximate"
        assert re.search(
            rf"is not in the recorded slots: it looks clipped by value, as \d+ entries of gradients are {bound} or its "
            r"negative; clip by norm, which is recorded \(from step \d+ on\)\.$",
            found.reason,
        ), found.reason


def test_statuses_read_no_slot(tmp_path, monkeypatch):
    trained = train(tmp_path / "m")

    def read(*_):
        raise AssertionError("slots were read")

    for name in ("keys", "values", "column"):
        monkeypatch.setattr(trained.engine._view.snapshot, name, read)
    assert status_of(trained).name == "exact"


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_a_refused_network_names_the_layers_that_are_answered(tmp_path):
    """No rule follows the optimizer of one of its layers."""
    layers = {"reads": nn.Linear(3, 4), "between": nn.ReLU(), "head": nn.Linear(4, 2)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    optimizers = [Unruled(model.reads.parameters(), lr=0.1), torch.optim.SGD(model.head.parameters(), lr=0.1)]
    with dualform.Recorder(model, optimizers, tmp_path / "m") as recorder:
        for _ in range(3):
            with recorder.step():
                model.zero_grad()
                model(torch.randn(5, 3)).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        for allow_inexact in (False, True):
            with pytest.raises(Inexact, match="Layer 'reads' cannot be reconstructed") as refused:
                memory.weights(allow_inexact=allow_inexact)
            assert refused.value.hint == "Ask for the output of single layers instead: head."
        assert memory.output("head", np.ones((1, 4), np.float32)).status.exact


@pytest.mark.parametrize("settings", [{"weight_decay": 0.1, "nesterov": True}, {"momentum": 0.0}])
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


def test_heads_in_turns_are_exact(tmp_path):
    def turn(number, model, optimizer):
        model.turn = number % 2

    trained = train(tmp_path / "m", model=Heads(), between=turn, momentum=0.9, weight_decay=0.01)
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


def in_bfloat16(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


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


FEW_STEPS = 6


def net(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def record_net(path, model, optimizer, at_step=None, at_end=None, on_gradient=None, loss=cross_entropy):
    """Train for STEPS steps; `at_step(number)` before each, `at_end()` before the recorder is left."""
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number in range(FEW_STEPS):
            if at_step is not None:
                at_step(number)
            with recorder.step(label=y):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                if on_gradient is not None:
                    on_gradient(number)
                optimizer.step()
        if at_end is not None:
            at_end()
        return recorder


def statuses(path):
    with dualform.open(path) as memory:
        return {layer.name: layer.status for layer in memory.info().layers}


def replaced(model, optimizer):
    def at_step(number):
        if number == 3:
            model[0].weight = nn.Parameter(torch.zeros_like(model[0].weight))
            optimizer.param_groups[0]["params"] = list(model.parameters())

    return at_step


def test_weights_that_are_swapped_for_others_between_updates_and_swapped_back(tmp_path):
    """As for an evaluation with averaged weights: no version of the tensor moves, and the update finds it as it was."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = model[0].weight.data

    def swap(number):
        model[0].weight.data = torch.zeros_like(own) if number == 3 else own

    def swap_back(number):
        model[0].weight.data = own

    record_net(tmp_path / "m", model, optimizer, at_step=swap, on_gradient=swap_back)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["0"].exact
        layer = memory._view.snapshot.layer("0")
        assert [exactness.status(memory._view, layer, step).name for step in (2, 3, 4)] == [
            "exact",
            "approximate",
            "exact",
        ]


def test_a_parameter_that_another_takes_the_place_of(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_net(tmp_path / "m", model, optimizer, at_step=replaced(model, optimizer))
    found = statuses(tmp_path / "m")
    assert (found["0"].name, found["2"].name) == ("approximate", "exact")
    assert found["0"].reason == "0.weight was replaced by another tensor at step 2 (from step 2 on)."
    with dualform.open(tmp_path / "m") as memory:
        with pytest.raises(dualform.DualformError, match=r"0\.weight was replaced by another tensor"):
            memory.output("0", np.ones((1, 5)))
        assert memory.output("0", np.ones((1, 5)), at_step=2).status.exact


def test_a_state_that_is_assigned_at_the_end(tmp_path):
    model = net()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_net(tmp_path / "m", model, optimizer, at_end=lambda: model.load_state_dict(best, assign=True))
    found = statuses(tmp_path / "m")
    assert {status.name for status in found.values()} == {"approximate"}
    assert found["2"].reason == "2.weight was replaced by another tensor at step 5 (from step 5 on)."
    assert found["2"].error is None  # the weights are where they were, so there is no way to hold the distance against
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["0"].reconstruction_error == np.inf
        assert np.allclose(
            memory.output("0", np.ones((1, 5)), allow_inexact=True), best["0.weight"].sum(1) + best["0.bias"]
        )


def test_a_weight_of_another_shape_ends_no_training(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def shrink():
        model[2].weight.data = model[2].weight.data[:2].clone()

    record_net(tmp_path / "m", model, optimizer, at_end=shrink)
    found = statuses(tmp_path / "m")
    assert [status.name for status in found.values()] == ["exact", "approximate"]


def test_gradients_that_were_zeroed_are_no_updates_though_the_batch_is_the_same(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for number in range(FEW_STEPS):
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number % 2:
                    optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        steps = memory.slots(np.arange(12 * FEW_STEPS))["step"]
        coefficients = memory.coefficients("0", np.arange(12 * FEW_STEPS))
        assert (coefficients[steps % 2 == 0] == 0).all()
        assert coefficients[steps % 2 == 1] == pytest.approx(-0.1, rel=1e-6)


def test_a_single_number_is_held_to_the_factor_of_its_layer(tmp_path):
    """A penalty on a bias of one number would pass for a factor: one number is parallel to any other."""
    model = net(outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(output, y):
        return (output[:, 0] - y).square().mean() + 3 * model[2].bias.square().sum()

    torch.nn.init.constant_(model[2].bias, 2.0)
    record_net(tmp_path / "m", model, optimizer, loss=loss)
    found = statuses(tmp_path / "m")
    assert (found["0"].name, found["2"].name) == ("exact", "approximate")
    assert "of the gradient of 2.bias at step 0 is not in the recorded slots" in found["2"].reason


def test_the_last_update_before_a_crash_is_not_taken_for_granted(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for number in range(FEW_STEPS):
            with recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number == FEW_STEPS - 1:
                    model[0].weight.grad[0] *= 3
                optimizer.step()
        recorder._training.recording.batches.sink.flush()  # as a crash leaves it: nobody has looked at the last update
        found = statuses(tmp_path / "m")["0"]
        assert (found.name, found.since) == ("approximate", FEW_STEPS - 1)
        assert found.reason.endswith("and its weights were not seen since.")
        recorder.flush()
        found = statuses(tmp_path / "m")["0"]
        assert found.name == "approximate"
        assert "not seen" not in found.reason


@pytest.mark.parametrize(("dtype", "foreach"), [(torch.float16, False), (torch.bfloat16, True)], ids=str)
def test_what_half_precision_loses_of_small_steps_is_followed_or_off(tmp_path, dtype, foreach):
    """Rounding is followed as the plain loop of the optimizer rounds; foreach's own is not."""
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=foreach)
    x, y = torch.randn(12, 5, dtype=dtype), torch.randint(0, 3, (12,))
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        FEW_STEPS,
        lambda _: cross_entropy(model(x).float(), y),
    )
    with dualform.open(tmp_path / "m") as memory:
        reconstructions = memory.verify()
        for layer in some(memory.info().layers):
            assert (layer.status.name == "approximate") == foreach
            error = reconstructions[layer.name].reconstruction_error
            assert (error is None or error > 1e-2) == foreach  # None: it moved less than rounding


WIDTH = 64


class Words(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens):
        return self.head(self.words(tokens).mean(1))


def trained_words(path, rows, used, after=lambda model: None):
    """A memory of a training that uses the first rows alone; `after`: what happens behind the recorder's back."""
    model, generator = Words(rows), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: after(model))
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        (
            (torch.randint(used, (16, 6), generator=generator), torch.randint(10, (16,), generator=generator))
            for _ in range(10)
        ),
        lambda tokens, label: cross_entropy(model(tokens), label),
        label=lambda tokens, label: label,
    )
    return model, dualform.open(path)


@pytest.mark.parametrize("rows", [3000, 20_000])
def test_of_some_neighbouring_rows_a_few_are_watched(tmp_path, rows):
    def shrink(model):
        model.words.weight.detach().numpy()[:30] *= 0.999  # which no version counter sees

    _, memory = trained_words(tmp_path / "memory", rows, 30, shrink)
    with memory:
        assert memory.verify()["words"].status.name == "approximate"
        with pytest.raises(Inexact, match="'words' cannot be reconstructed exactly"):
            memory.output("words", np.eye(1, rows, 3, dtype=np.float32), at_step=8)


@pytest.mark.parametrize("shrinks", [False, True], ids=["as the optimizer does", "shrunk by hand"])
def test_where_none_of_them_is_watched_a_pass_at_the_end_tells(tmp_path, shrinks):
    def shrink(model):
        if shrinks:
            model.words.weight.detach().numpy()[:2] *= 0.999

    model, memory = trained_words(tmp_path / "memory", 50_000, 2, shrink)
    query = np.eye(1, 50_000, 1, dtype=np.float32)
    with memory:
        (layer,) = (own for own in memory.info().layers if own.name == "words")
        why = "none of the watched numbers of words.weight moved"
        assert str(layer.status) == "approximate"
        assert layer.status.reason == f"{why} while training; `verify` measures the end of it."
        with pytest.raises(Inexact, match=f"{why} while training"):
            memory.output("words", query, at_step=8)
        found = memory.verify()["words"]
        if shrinks:
            assert found.status.name == "approximate"
            assert found.status.reason.endswith(f" of the distance it moved; {why}.")
            with pytest.raises(Inexact, match=why):
                memory.output("words", query)
            return
        assert found.status.name == "exact"
        assert 0 < found.reconstruction_error < 1e-4
        output = memory.output("words", query)
        assert output.status.name == "exact"
        moved = np.linalg.norm(model.words.weight.detach()[1] - Words(50_000).words.weight.detach()[1])
        assert np.linalg.norm(output.values[0] - model.words.weight.detach()[1].numpy()) < 1e-4 * moved


def test_every_block_at_rest_is_asked_not_the_first_alone(tmp_path, monkeypatch):
    _, memory = trained_words(tmp_path / "memory", 50, 50)
    with memory:
        layer = memory._view.snapshot.layers["head"]
        at_rest = [SimpleNamespace(way=np.zeros(1)) for _ in layer.parameters]
        monkeypatch.setattr(exactness, "distances", lambda view, layer: at_rest)
        before = {name: own.copy() for name, own in memory._view.stored_weights("initial").items()}
        after = before | {"head.bias": before["head.bias"] + 1}
        stored = {"initial": before, "final": after}
        monkeypatch.setattr(memory._view, "stored_weights", stored.__getitem__)
        assert exactness.unwatched(memory._view, layer) == "none of the watched numbers of head.bias moved"
        stored["final"] = before
        assert exactness.unwatched(memory._view, layer) == ""


class Copied(nn.Module):
    """Two layers that begin alike, and only the first of which is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.online, self.target = nn.Linear(5, 3), nn.Linear(5, 3)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, x):
        return self.online(x)


class Aliased(nn.Module):
    """A layer under two names, and a buffer that is its weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.again = nn.Module()
        self.again.layer = self.layer
        self.register_buffer("shown", None)
        self._buffers["shown"] = self.layer.weight
        self.register_buffer("kept_out", None, persistent=False)
        self._buffers["kept_out"] = self.layer.weight

    def forward(self, x):
        return self.last(torch.tanh(self.again.layer(torch.tanh(self.layer(x)))))


def copy_online(number, model, optimizer):
    model.target.load_state_dict(model.online.state_dict())


@pytest.mark.filterwarnings("ignore:not recorded")
def test_a_copy_of_a_weight_is_not_rewritten(tmp_path):
    trained = train(tmp_path / "m", model=Copied(), between=copy_online)
    for where, at_step in ((None, 3), ("sample < 100", None)):
        found = trained.engine.weights(where, at_step)
        assert found.not_recorded == ("target.bias", "target.weight")
        for name in found.not_recorded:
            assert np.array_equal(found.arrays[name], trained.history[-1][name].numpy()), "it stands as at the end"
        assert not np.array_equal(found.arrays["online.weight"], found.arrays["target.weight"])


def test_a_tensor_has_each_of_its_names(tmp_path):
    trained = train(tmp_path / "m", model=Aliased())
    aliases = {"again.layer.weight": "layer.weight", "again.layer.bias": "layer.bias", "shown": "layer.weight"}
    assert Snapshot.open(tmp_path / "m").aliases == aliases
    found = trained.engine.weights("sample < 100")
    assert found.not_recorded == ()
    assert found.arrays.keys() == trained.model.state_dict().keys()
    assert not np.array_equal(found.arrays["layer.weight"], trained.history[-1]["layer.weight"].numpy())
    for other, name in aliases.items():
        assert np.array_equal(found.arrays[other], found.arrays[name])


def test_a_memory_that_was_recorded_without_them_has_none(tmp_path):
    train(tmp_path / "m", model=Aliased())
    fields = json.loads((tmp_path / "m" / FILE).read_text())
    del fields["aliases"], fields["checksum"]
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    (tmp_path / "m" / FILE).write_text(json.dumps(fields | {"checksum": checksum(canonical)}))
    assert Manifest.read(tmp_path / "m").aliases == {}
    with pytest.warns(UserWarning, match=r"^not recorded, .*: again\.layer\.bias, again\.layer\.weight, shown\.$"):
        found = dualform.open(tmp_path / "m").weights("sample < 100")
    assert found.not_recorded == ("again.layer.bias", "again.layer.weight", "shown")
