"""What trains is recorded, whatever mode its module is in; what does not has no slots."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from dualform.record.recorder import Recorder
from tests.trainings import learn, record_steps

from .listed import Opened, assert_rebuilt, batches, small_net, snapshot


def train(model, opened, data, before=lambda number: None):
    """Returns the weights before and after each step."""
    snapshots = [snapshot(model)]
    with opened.recorder:
        for number, (x, y) in enumerate(data):
            before(number)
            with opened.recorder.step(label=y):
                learn(opened.optimizer, cross_entropy(model(x), y))
            snapshots.append(snapshot(model))
    return snapshots


def opened_on(model, path):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), path)


@pytest.mark.parametrize("evaluated", ["", "2"], ids=["all of it", "one layer"])
def test_a_training_in_eval_mode(tmp_path, evaluated):
    """As one of a network whose dropout is frozen."""
    model = small_net()
    model.get_submodule(evaluated).eval()
    opened = opened_on(model, tmp_path / "m")
    snapshots = train(model, opened, batches(3))
    assert opened.sink.defects == []
    assert opened.sink.layer_names == ["0", "2", "4"]
    assert_rebuilt(opened.sink, snapshots)


class Padded(nn.Module):
    """Refuses sequences that are packed, as its tap would have to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(5, 3, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def test_what_is_evaluated_within_a_step_is_no_call_of_it(tmp_path):
    model = Padded()
    opened = opened_on(model, tmp_path / "m")
    x = torch.randn(4, 6, 5)
    with opened.recorder, opened.recorder.step():
        model(x).square().sum().backward()
        with torch.no_grad():
            model.eval()(nn.utils.rnn.pack_padded_sequence(x, torch.full((4,), 6), batch_first=True))
    assert len(opened.sink.keys("lstm")) == 24


def test_a_layer_that_is_frozen_for_some_steps_has_no_slots_in_them(tmp_path):
    model, steps = small_net(), {2, 3, 5}
    opened = opened_on(model, tmp_path / "m")
    snapshots = train(model, opened, batches(7), lambda number: model[2].requires_grad_(number not in steps))
    assert opened.sink.defects == []
    assert [step for step, _ in opened.sink.parts("2")] == [0, 1, 4, 6]
    assert [step for step, _ in opened.sink.parts("0")] == [*range(7)]
    assert_rebuilt(opened.sink, snapshots)


def test_where_a_bias_alone_trains_its_slots_are_there(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    snapshots = train(model, opened, batches(4), lambda number: model[2].weight.requires_grad_(number < 2))
    assert [step for step, _ in opened.sink.parts("2")] == [0, 1, 2, 3]
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6) / 3), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class Residual(nn.Module):
    """Adds to a layer's input in place, which autograd lets pass where no weight needs the input any more."""

    def __init__(self, layer, checkpointed):
        super().__init__()
        self.layer, self.checkpointed, self.seen = layer, checkpointed, []

    def forward(self, x):
        return checkpoint(self.add, x, use_reentrant=False) if self.checkpointed else self.add(x)

    def add(self, x):
        x = x + 1
        self.seen.append(x.detach().clone())
        y = self.layer(x)
        if self.layer.weight.requires_grad:
            return torch.tanh(x + y)
        x += y
        return torch.tanh(x)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "in a checkpoint"])
@pytest.mark.parametrize("own", [False, True], ids=["a layer", "a matrix of its own"])
def test_a_training_of_biases_may_write_to_the_inputs_of_its_layers(tmp_path, own, checkpointed):
    def train(recorded):
        torch.manual_seed(0)
        middle = Residual(Own() if own else nn.Linear(6, 6), checkpointed)
        model = nn.Sequential(nn.Linear(5, 6), middle, nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        opened = Opened(model, optimizer, tmp_path / "m") if recorded else None
        snapshots = [snapshot(model)]
        with opened.recorder if opened else nullcontext():
            for number, (x, _) in enumerate(batches(4)):
                middle.layer.weight.requires_grad_(number == 0)
                with opened.recorder.step() if opened else nullcontext():
                    learn(optimizer, model(x).square().sum())
                snapshots.append(snapshot(model))
        return opened, snapshots, torch.cat(middle.seen[:: 1 + checkpointed])

    _, alone, _ = train(recorded=False)
    opened, snapshots, seen = train(recorded=True)
    for before, now in zip(alone, snapshots, strict=True):
        assert all(np.array_equal(before[name], own) for name, own in now.items())
    assert opened.sink.defects == []
    np.testing.assert_array_equal(opened.sink.keys("1.layer.weight" if own else "1.layer"), seen)
    assert_rebuilt(opened.sink, snapshots)


def test_hits_of_a_frozen_layer_brought_something(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for number, (x, y) in enumerate(batches(6)):
            model[0].requires_grad_(number % 2 == 0)
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y))
    memory = dualform.open(tmp_path / "m")
    query = np.ones((1, 5), dtype=np.float32)
    hits = memory.topk("0", query, k=100)
    assert sorted(memory.slots(hits.slots[0], "sample")["step"]) == [step for step in (0, 2, 4) for _ in range(8)]
    assert int(memory.group_sum("0", query, by="step").counts.sum()) == 24
    assert all(reconstruction.reconstruction_error <= 1e-5 for reconstruction in memory.verify().values())


def test_a_network_that_is_frozen_in_its_first_step_says_so(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    model.requires_grad_(False)
    x, y = batches(1)[0]
    with opened.recorder:
        with opened.recorder.step(label=y):
            model(x)
        model.requires_grad_(True)
        with opened.recorder.step(label=y):
            cross_entropy(model(x), y).backward()
    assert len(opened.sink.recorded) == 1


def test_layers_that_unfreeze_one_after_another(tmp_path):
    """They are frozen once the recorder is made."""
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    snapshots = train(
        model, opened, batches(6), lambda number: [model[i].requires_grad_(number >= 4 - i) for i in (0, 2, 4)]
    )
    assert [[step for step, _ in opened.sink.parts(name)] for name in ("0", "2", "4")] == [
        [4, 5],
        [2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    assert [[layer.name for layer in batch.joined] for batch in opened.sink.recorded] == [[], [], ["2"], [], ["0"], []]
    assert opened.sink.skipped == {}
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


@pytest.mark.parametrize("held", [True, False], ids=["held by the optimizer", "given to it later"])
def test_a_layer_that_was_frozen_when_recording_began_is_named_once_it_trains(tmp_path, held):
    model = small_net()
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD([p for i in (0, 2, 4) if held or i != 2 for p in model[i].parameters()], lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    assert opened.recorder.skipped == {"2": "its weight is frozen"}

    def unfreeze(number):
        if number == 2:
            model[2].requires_grad_(True)
        if number == 3 and not held:
            optimizer.add_param_group({"params": list(model[2].parameters())})

    with pytest.warns(RuntimeWarning) as told:
        train(model, opened, batches(5), unfreeze)
    since = 2 if held else 3
    first = "make" if held else "give all weights to the optimizer, instead of add_param_group later, and make"
    assert [str(warning.message) for warning in told] == [
        f"layers that did not train when recording began train from step {since} on, and are not recorded: '2' (its "
        f"weight was frozen). To record them, {first} the recorder before you freeze these weights. Or make "
        f"another recorder, with another folder, at the step where they join."
    ]
    assert opened.sink.skipped == {
        "2": f"its weight was frozen when recording began, and is trained from step {since} on"
    }
    assert opened.sink.defects == []


def test_another_recorder_records_a_layer_from_the_step_where_it_joins(tmp_path):
    """With the momentum that the others have by then."""
    model = small_net()
    model[2].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for i in (0, 4) for p in model[i].parameters()], lr=0.01)
    train(model, Opened(model, optimizer, tmp_path / "first"), batches(3))
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "second", quiet=True),
        optimizer,
        batches(4, seed=2),
        lambda x, y: cross_entropy(model(x), y),
        label=lambda x, y: y,
    )
    with dualform.open(tmp_path / "second") as memory:
        reconstructions = memory.verify()
        assert [*reconstructions] == ["0", "2", "4"]
        assert all(own.exact and not own.reason for own in reconstructions.values())


class Parts(nn.Module):
    """A matrix of its own, a norm, attention, and a layer that computes in a way of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.own, self.norm, self.last = nn.Parameter(torch.randn(5, 4) / 2), nn.LayerNorm(4), nn.Linear(4, 3)
        self.attention, self.rounded = nn.MultiheadAttention(4, 2, batch_first=True), Quantized(4, 4)

    def forward(self, x):
        x = self.norm(x @ self.own)[:, None]
        return self.last(self.rounded(x + self.attention(x, x, x)[0])[:, 0])


@pytest.mark.parametrize("held", [True, False], ids=["frozen", "held by no optimizer"])
def test_every_part_that_trains_later_is_named(tmp_path, held):
    model = Parts()
    parts = [model.own, *model.norm.parameters(), model.attention.in_proj_weight, *model.rounded.parameters()]
    later = {id(own) for own in parts}
    optimizer = torch.optim.SGD([own for own in model.parameters() if held or id(own) not in later], lr=0.1)
    for own in parts if held else [model.rounded.weight]:
        own.requires_grad_(False)
    opened = Opened(model, optimizer, tmp_path / "m")
    why = "is frozen" if held else "is not among the optimizer's parameters"
    names = ["own", "attention.q", "attention.k", "attention.v", "norm"]
    skipped = dict.fromkeys(names[1:4], f"its weight {why}") | {"own": f"it {why}", "rounded": "its weight is frozen"}
    assert opened.recorder.skipped == skipped | {"norm": "not a matrix product (LayerNorm)"}

    def wake(number):
        if number == 2:
            model.requires_grad_(True)
            if not held:
                optimizer.add_param_group({"params": parts})

    with pytest.warns(RuntimeWarning) as told:
        train(model, opened, batches(4), wake)
    was = why.replace("is", "was", 1)
    their = {name: f"it {was}" if name == "own" else f"its weight {was}" for name in names}
    assert [str(warning.message).partition(". ")[0] for warning in told] == [
        "layers that did not train when recording began train from step 2 on, and are not recorded: "
        + ", ".join(f"{name!r} ({their[name]})" for name in names)
    ]
    assert opened.sink.skipped == {
        name: f"{own} when recording began, and is trained from step 2 on" for name, own in their.items()
    } | {"rounded": "Quantized has a forward of its own"}


def test_what_was_left_out_is_not_told_of_when_it_trains(tmp_path):
    model = small_net()
    model[2].requires_grad_(False)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", layers=["0", "4"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, opened, batches(2), lambda number: model[2].requires_grad_(number > 0))
    assert opened.sink.skipped == {"2": "layers= leaves it out"}


class Quantized(nn.Linear):
    """Computes in a way of its own, as quantized layers do."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.round(), self.bias)


def test_frozen_is_said_before_a_forward_of_its_own(tmp_path):
    model = nn.Sequential(Quantized(5, 5), Quantized(5, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert recorder.skipped == {"0": "its weight is frozen", "1": "Quantized has a forward of its own"}


def test_a_step_that_no_gradient_reaches_says_what_to_do(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    for parameter in model.parameters():  # as where another object computes with its weights
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RecordingError) as raised, opened.recorder, opened.recorder.step():
        pass
    assert str(raised.value) == (
        "No gradient reached a recorded layer inside the first step. Run forward and backward "
        "inside `with recorder.step(...)`, through the model passed to Recorder. Enter the "
        "recorder before the first call of a compiled model."
    )
