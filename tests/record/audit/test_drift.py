"""The watch's numbers are those of NumPy in float64; what it does not see of a large weight is not called exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact
from dualform.record.audit import weights
from tests.cases import some
from tests.record.listed import Opened, batches, small_net, snapshot
from tests.rules.own import Unruled
from tests.trainings import learn

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
def test_distances_are_those_of_the_whole_weights_and_of_what_was_done_by_hand(tmp_path_factory, actions, seed):
    torch.manual_seed(seed)
    sink, snapshots, nudges = run(tmp_path_factory.mktemp("watch") / "m", actions, small_net(seed))
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


def test_an_update_that_no_slot_holds_is_a_defect_and_shows_after_its_step(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(4)):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y))
            if number == 1:
                optimizer.step()
    reason = "the optimizer stepped outside recorder.step at step 1, with gradients that no slot holds"
    assert opened.sink.defects == [("0", 1, reason), ("2", 1, reason), ("4", 1, reason)]
    assert sorted(opened.sink.logs) == [0, 1, 2, 3]
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


STEPS, TOKENS, ROW = 14, 5000, 4321

WRITTEN = "weights were changed outside the optimizer's update, after that of step {0} (from step {0} on)."


class Bag(nn.Module):
    """An embedding far larger than what is watched of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def record(path, edit=None, between=None):
    """Train with AdamW; `edit(model)` before each update, `between(number, model, optimizer)` after each step."""
    model, generator = Bag(), torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number in range(STEPS):
            tokens = torch.randint(1, TOKENS, (8, 5), generator=generator)
            tokens[:, 3:] = 0
            with recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(tokens), torch.randint(0, 4, (8,), generator=generator)).backward()
                if edit is not None:
                    edit(model)
                optimizer.step()
            if between is not None:
                between(number, model, optimizer)
    return model


def statuses(path):
    with dualform.open(path) as memory:
        return {layer.name: layer.status for layer in memory.info().layers}


def test_a_row_that_is_zeroed_after_each_step_is_dated_and_measured(tmp_path):
    def zero(number, model, optimizer):
        with torch.no_grad():
            model.embedding.weight[0] = 0

    record(tmp_path / "m", between=zero)
    found = statuses(tmp_path / "m")
    assert (found["embedding"].name, found["embedding"].since) == ("approximate", 0)
    assert found["embedding"].reason == WRITTEN.format(0)
    with dualform.open(tmp_path / "m") as memory:
        assert found["embedding"].error == pytest.approx(memory.verify()["embedding"].reconstruction_error, rel=0.5)
        with pytest.raises(Inexact, match="weights were changed"):
            memory.weights()


def test_what_is_taken_back_before_the_next_update_is_no_write(tmp_path):
    def lend(number, model, optimizer):
        kept = model.embedding.weight.detach().clone()
        with torch.no_grad():
            model.embedding.weight.mul_(0.9)
            model.embedding.weight.copy_(kept)

    record(tmp_path / "m", between=lend)
    assert statuses(tmp_path / "m")["embedding"].name == "exact"


def test_a_statistic_that_is_written_to_is_not_known_to_be_exact_from_then_on(tmp_path):
    def write(number, model, optimizer):
        if number == 6:
            optimizer.state[model.embedding.weight]["exp_avg_sq"][ROW, 3] = 1.0

    record(tmp_path / "m", between=write)
    found = statuses(tmp_path / "m")["embedding"]
    assert (found.name, found.error, found.since) == ("approximate", None, 7)
    assert (
        found.reason == "the optimizer's exp_avg_sq of embedding.weight was written to before step 7 (from step 7 on)."
    )
    with dualform.open(tmp_path / "m") as memory:
        assert memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=7).status.name == "exact"
        with pytest.raises(Inexact, match="was written to before step 7"):
            memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=8)


def test_a_gradient_that_the_slots_do_not_explain_is_not_known_to_be_exact_from_then_on(tmp_path):
    def edit(model):
        model.embedding.weight.grad[ROW] += 1.0

    record(tmp_path / "m", edit=edit)
    for at_step in (1, STEPS):
        with dualform.open(tmp_path / "m") as memory, pytest.raises(Inexact, match="is not in the recorded slots"):
            memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=at_step)
    found = statuses(tmp_path / "m")
    assert (found["embedding"].name, found["embedding"].error, found["embedding"].since) == ("approximate", None, 0)
    assert found["head"].name == "exact"


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(66))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def test_of_many_small_layers_few_entries_are_watched_and_a_write_past_the_versions_is_seen(tmp_path):
    """`.data` counts no version, and the one number that it writes is hardly among the entries."""
    model, inputs = Deep(), torch.randn(5, 16, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for number, x in enumerate(inputs):
            with recorder.step():
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
            if number == 2:
                model.layers[7].weight.data[3, 5] += 0.1
    found = statuses(tmp_path / "m")
    written = found.pop("layers.7")
    assert (written.name, written.reason) == ("approximate", WRITTEN.format(2))
    assert {own.name for own in found.values()} == {"exact"}
    with dualform.open(tmp_path / "m") as memory:
        errors = memory.verify()
    assert written.error == pytest.approx(errors["layers.7"].reconstruction_error, rel=0.5)
    for name, own in some(found.items()):
        assert own.error == pytest.approx(errors[name].reconstruction_error, rel=0.5)
