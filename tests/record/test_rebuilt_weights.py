"""Whatever SGD does, the record rebuilds every weight and bias as of every step."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from tests.rules.own import Unruled
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, batches, small_net, snapshot

VARIANTS = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    "nesterov": {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    "weight decay": {"lr": 0.1, "weight_decay": 0.05},
    "weight decay and nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    "maximize": {"lr": 0.01, "momentum": 0.5, "maximize": True, "weight_decay": 0.01},
    "tensor rate": {"lr": torch.tensor(0.1), "momentum": 0.9},
    "foreach": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True},
    "fused": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "fused": True},
}


def train(model, optimizer, opened, data, *, clip=None, schedule=None, every=1, outside=False):
    snapshots = [snapshot(model)]
    for number, (x, y) in enumerate(data):
        due = (number + 1) % every == 0

        def update():
            if clip is not None:
                clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()

        with opened.recorder.step(label=y):
            cross_entropy(model(x), y).backward()
            if due and not outside:
                update()
        if due and outside:
            update()
        if schedule is not None:
            schedule(optimizer, number)
        snapshots.append(snapshot(model))
    return snapshots


def record(model, optimizer, path, data, **how):
    opened = Opened(model, optimizer, path)
    with opened.recorder:
        snapshots = train(model, optimizer, opened, data, **how)
    return opened.sink, snapshots


@pytest.mark.parametrize("clip", [None, 0.3], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_each_variant_of_sgd(tmp_path, settings, clip):
    model = small_net()
    sink, snapshots = record(
        model, torch.optim.SGD(model.parameters(), **settings), tmp_path / "m", batches(12), clip=clip
    )
    assert sink.defects == []
    assert sink.header.rule == "sgd"
    assert sink.finished
    assert_rebuilt(sink, snapshots)
    factors = [f.factor for log in sink.logs.values() for f in log.factors]
    assert (min(factors) < 0.9) == (clip is not None)


def test_settings_that_change_from_step_to_step(tmp_path):
    def schedule(optimizer, number):
        group = optimizer.param_groups[0]
        group["lr"] = 0.1 / (1 + number)
        group["momentum"] = [0.9, 0.0, 0.5][number % 3]
        group["weight_decay"] = [0.0, 0.1][number % 2]

    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink, snapshots = record(model, optimizer, tmp_path / "m", batches(10), schedule=schedule)
    assert_rebuilt(sink, snapshots)
    assert [log.groups[0].settings["momentum"] for log in sink.logs.values()][:4] == [0.0, 0.9, 0.0, 0.5]


def test_several_groups_with_biases_that_do_not_decay(tmp_path):
    model = small_net()
    weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.3, "momentum": 0.0}]
    sink, snapshots = record(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9), tmp_path / "m", batches(8))
    assert_rebuilt(sink, snapshots)
    assert [(f.parameter, f.group) for f in sink.logs[0].factors[:2]] == [("0.weight", 0), ("0.bias", 1)]


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("every", [1, 3])
def test_updates_of_several_steps_inside_and_outside_the_step(tmp_path, every, outside):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sink, snapshots = record(model, optimizer, tmp_path / "m", batches(8), every=every, outside=outside, clip=0.5)
    assert sink.defects == []
    assert_rebuilt(sink, snapshots)
    assert [log.updated for log in sink.logs.values()] == [(n + 1) % every == 0 for n in range(8)]
    assert [log.first_step for log in sink.logs.values() if log.updated] == list(range(0, 8 - every + 1, every))


def test_a_momentum_buffer_from_before(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.2)
    for x, y in batches(3, seed=5):
        learn(optimizer, cross_entropy(model(x), y))
    optimizer.zero_grad()
    sink, snapshots = record(model, optimizer, tmp_path / "m", batches(6))
    assert set(sink.header.buffers) == set(dict(model.named_parameters()))
    assert_rebuilt(sink, snapshots)


def test_training_before_the_first_step_is_part_of_the_initial_weights(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        x, y = batches(1, seed=9)[0]
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        snapshots = train(model, optimizer, opened, batches(5))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


class Branches(nn.Module):
    """The second layer takes part in some steps only."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.branch = True

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x + self.second(x) if self.branch else x)


def test_a_parameter_that_some_updates_skip(tmp_path):
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def schedule(_, number):
        model.branch = number not in (1, 2, 5)

    sink, snapshots = record(model, optimizer, tmp_path / "m", batches(8), schedule=schedule)
    assert_rebuilt(sink, snapshots)
    factors = {f.parameter: f.factor for f in sink.logs[2].factors}
    assert factors["second.weight"] is None
    assert factors["first.weight"] == pytest.approx(1)
    assert sink.defects == []
    assert [batch.step for batch in sink.recorded if "second" not in batch.layers] == [2, 3, 6]


def test_gradients_that_no_update_used(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for number, (x, y) in enumerate(batches(8)):
            with opened.recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number not in (2, 3, 7):
                    optimizer.step()
            snapshots.append(snapshot(model))
    sink = opened.sink
    assert sink.defects == []
    assert_rebuilt(sink, snapshots)
    assert sink.logs[4].first_step == 4
    assert [n for n, log in sink.logs.items() if not log.updated] == [2, 3, 7]


def test_an_optimizer_that_calls_a_closure(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(5):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            with opened.recorder.step():
                assert optimizer.step(closure) > 0
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_two_backward_passes_through_one_forward_pass_add_up(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(4):
            with opened.recorder.step():
                optimizer.zero_grad()
                output = model(x)
                cross_entropy(output, y).backward(retain_graph=True)
                output.square().mean().backward()
                optimizer.step()
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_optimizers_without_a_rule_are_recorded(tmp_path):
    model = small_net()
    with pytest.warns(RuntimeWarning, match="trained with Unruled, for which there is no update rule"):
        sink, _ = record(model, Unruled(model.parameters(), lr=0.01), tmp_path / "m", batches(3))
    assert sink.header.rule == ""
    assert sink.header.optimizer == "Unruled"
    assert sink.header.reason == (
        "the network was trained with Unruled, for which there is no update rule: "
        "attention scores are exact, outputs and weights cannot be rebuilt"
    )
    assert len(sink.keys("0")) == 24
