"""The watch's numbers are those of NumPy in float64, and the training comes out as without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.record.audit import weights
from dualform.rules import named, of_type
from tests.cases import some
from tests.rules.own import Unruled
from tests.trainings import learn

from .listed import Opened, batches, small_net, snapshot

SETTINGS = {
    "lr": st.sampled_from([0.0, 0.05, 0.2]),
    "momentum": st.sampled_from([0.0, 0.5, 0.9]),
    "dampening": st.sampled_from([0.0, 0.3]),
    "weight_decay": st.sampled_from([0.0, 0.1]),
    "maximize": st.booleans(),
}
ACTIONS = st.lists(
    st.fixed_dictionaries(
        {**SETTINGS, "nesterov": st.booleans(), "clip": st.sampled_from([None, 0.05]), "update": st.booleans(),
         "frozen": st.booleans(), "nudge": st.booleans()}
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


def run(path, actions, model):
    """Train; returns what was recorded, and the weights once each step was over (before any nudge)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, path)
    snapshots, nudges = [snapshot(model)], {}
    with opened.recorder:
        for number, ((x, y), action) in enumerate(zip(batches(len(actions)), actions, strict=True)):
            group = optimizer.param_groups[0]
            group.update({name: action[name] for name in SETTINGS})
            group["nesterov"] = action["nesterov"]
            with opened.recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if action["frozen"] and number:
                    model[2].weight.grad = None
                if action["clip"] is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), action["clip"])
                if action["update"]:
                    optimizer.step()
            if action["nudge"]:
                nudges[number] = 0.01 * torch.randn(6, 7)
                with torch.no_grad():
                    model[2].weight.add_(nudges[number])
            snapshots.append(snapshot(model))
    return opened.sink, snapshots, nudges


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, seed=st.integers(0, 99))
def test_accumulated_distances_are_those_of_the_whole_weights(tmp_path_factory, actions, seed):
    sink, snapshots, _ = run(tmp_path_factory.mktemp("watch") / "m", actions, small_net(seed))
    for name, rows in some(sink.watch.items()):
        assert [row.step for row in rows] == sorted(row.step for row in rows)
        last = rows[-1]
        assert last.step == len(actions) - 1
        final, way = snapshots[-1][name], np.linalg.norm(snapshots[-1][name] - snapshots[0][name])
        error = np.linalg.norm(final - sink.rebuilt(name, len(actions)))
        if final.ndim == 1:  # a bias is not projected
            assert last.way == pytest.approx(way, rel=1e-9, abs=1e-12)
            assert last.accumulated == pytest.approx(error, rel=1e-6, abs=1e-9)
        else:
            assert last.way == pytest.approx(way, rel=0.7, abs=1e-12)
            assert last.accumulated == pytest.approx(error, rel=0.7, abs=1e-7)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, seed=st.integers(0, 99))
def test_one_step_distances_are_what_was_done_by_hand(tmp_path_factory, actions, seed):
    torch.manual_seed(seed)
    sink, _, nudges = run(tmp_path_factory.mktemp("watch") / "m", actions, small_net(seed))
    for name, rows in some(sink.watch.items()):
        moved = {row.step: row.one_step for row in rows if row.one_step > 8 * row.noise}
        by_hand = nudges if name == "2.weight" else {}
        assert set(moved) == set(by_hand)
        for step, nudge in by_hand.items():
            assert moved[step] == pytest.approx(float(nudge.norm()), rel=0.7)


def test_distances_along_the_directions_are_those_of_numpy(tmp_path, monkeypatch):
    """The recurrence written out, along the watch's own directions."""
    held = []

    class Spy(weights.Watch):
        def __init__(self, parameters, *rest):
            held.append(parameters)
            super().__init__(parameters, *rest)

    monkeypatch.setattr(weights, "Watch", Spy)
    model = small_net()
    before = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = []
    with opened.recorder:
        for x, y in batches(6):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
            snapshots.append(snapshot(model))
    (parameters,), sink = held, opened.sink
    for parameter in (p for p in parameters if p.directions is not None):
        layer, along = parameter.layers[0], parameter.directions.matrix
        weight = before[parameter.name] @ along
        buffer = 0.0
        for step, row in enumerate(sink.watch[parameter.name]):
            (rows,) = next(b.layers[layer] for b in sink.batches if b.step == step and b.layers)
            (factor,) = (own.factor for own in sink.logs[step].factors if own.parameter == parameter.name)
            gradient = factor * (rows.values.astype(float).T @ rows.keys.astype(float) @ along) + 0.01 * weight
            buffer = 0.9 * buffer + gradient
            weight = weight - 0.1 * buffer
            seen = snapshots[step][parameter.name]
            assert row.step == step
            # Float64 products of n terms, of the weights now and at first: each is off by n roundings of its terms.
            terms = (np.abs(seen) + np.abs(before[parameter.name])) @ np.abs(along)
            way = np.linalg.norm((seen - before[parameter.name]) @ along) / 8**0.5
            off = 2 * len(along) * 2.0**-53 * np.linalg.norm(terms) / 8**0.5
            assert row.way == pytest.approx(way, rel=1e-14, abs=off)
            # The recurrence adds the rounding of as many products as there were updates.
            distance = np.linalg.norm(seen @ along - weight) / 8**0.5
            assert row.accumulated == pytest.approx(distance, rel=1e-14, abs=(step + 2) * off)
            expected = np.sqrt((step + 1) / 3) * 2.0**-24 * np.linalg.norm(seen @ along) / 8**0.5
            assert row.rounding == pytest.approx(expected, rel=0.1)


def test_a_momentum_buffer_from_before_is_part_of_the_start(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(3, seed=5):
        learn(optimizer, cross_entropy(model(x), y))
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for x, y in batches(3):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
    assert all(row.accumulated < 1e-5 * row.way for rows in opened.sink.watch.values() for row in rows)


def test_updates_of_several_steps_and_between_steps_are_watched(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(7)):
            with opened.recorder.step():
                cross_entropy(model(x), y).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    rows = opened.sink.watch["2.weight"]
    assert [row.step for row in rows] == [1, 4, 6]
    assert rows[0].way == 0.0
    assert all(row.accumulated <= 1e-5 * row.way for row in rows)


def test_an_update_that_no_slot_holds_shows_after_its_step(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(4)):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
            if number == 1:
                optimizer.step()
    rows = opened.sink.watch["2.weight"]
    far = [row.step for row in rows if row.one_step > 8 * row.noise]
    assert far == [1]
    assert [row.step for row in rows] == [0, 1, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_without_values_or_without_a_rule_nothing_is_watched(tmp_path):
    for number, (kind, options) in enumerate([(torch.optim.SGD, {"values": False}), (Unruled, {})]):
        model = small_net()
        optimizer = kind(model.parameters(), lr=0.1)
        opened = Opened(model, optimizer, tmp_path / str(number), **options)
        with opened.recorder:
            for x, y in batches(2):
                with opened.recorder.step():
                    learn(optimizer, cross_entropy(model(x), y))
        assert opened.sink.watch == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_weights_that_blew_up_end_nothing(tmp_path, bad):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(4)):
            if number == 2:
                with torch.no_grad():
                    model[4].bias.fill_(bad)
                break
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
    last = opened.sink.watch["4.bias"][-1]
    assert last.step == 1
    assert not last.accumulated < 1e30


def test_rules_are_found_by_the_optimizers_own_type():
    assert of_type(torch.optim.SGD) is named("sgd")
    assert of_type(Unruled) is None
    assert of_type(torch.optim.AdamW) is named("adamw")
    assert of_type(torch.optim.LBFGS) is None
    assert named("") is None
