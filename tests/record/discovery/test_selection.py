"""Every layer that trains is recorded, or listed with the reason why not."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import dualform
from dualform import tap
from dualform.errors import NotFound, RecordingError
from dualform.record.recorder import Recorder
from tests.record.listed import Opened, assert_rebuilt, batches, small_net, snapshot
from tests.trainings import learn


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Plain(nn.Linear):
    """A subclass that computes what nn.Linear does."""


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.embed, self.lstm, self.norm = (
            nn.Conv2d(1, 2, 3),
            nn.Embedding(5, 4),
            nn.LSTM(4, 4),
            nn.LayerNorm(4),
        )
        self.relu, self.rnn = nn.ReLU(), nn.RNN(4, 4)
        self.plain, self.own, self.frozen, self.left_out = Plain(4, 4), Own(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.changed = parametrize.register_parametrization(nn.Linear(4, 4), "weight", nn.Tanh())
        self.frozen.requires_grad_(False)


def recorder(tmp_path, **options):
    model = Zoo()
    parameters = [p for name, p in model.named_parameters() if not name.startswith("left_out")]
    return Recorder(model, torch.optim.SGD(parameters, lr=0.1), tmp_path / "m", **options)


def test_reasons(tmp_path):
    made = recorder(tmp_path)
    names = ["conv", "embed", "lstm", "plain", "block.0", "block.1", "changed"]
    assert [tap.name for tap in made._controller.plan.taps] == names
    assert made.skipped == {
        "rnn": "RNN is not supported",
        "norm": "not a matrix product (LayerNorm)",
        "own": "Own has a forward of its own",
        "frozen": "its weight is frozen",
        "left_out": "its weight is not among the optimizer's parameters",
    }


def test_a_pattern_that_matches_nothing(tmp_path):
    with pytest.raises(NotFound) as caught:
        recorder(tmp_path, layers=["block.0", "head*"])
    assert str(caught.value) == (
        "layers='head*' does not match any layer that can be recorded. Layers: 'conv', 'embed', "
        "'lstm', 'plain', 'own', "
        "'frozen', 'left_out', 'block.0', 'block.1', 'changed'."
    )


class Scaled(nn.Module):
    """A frozen layer whose output a vector scales, as IA3 trains it, and another shifts."""

    def __init__(self, shape=(1, 4)):
        super().__init__()
        self.layer = nn.Linear(10, 4).requires_grad_(False)
        self.scale, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.layer(x) * self.scale + self.shift


def test_a_training_of_vectors_is_refused_at_its_first_step(tmp_path):
    model, x = Scaled(), torch.randn(8, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = Recorder(model, optimizer, tmp_path / "m", on_error="stop_recording")
    before = model.scale.detach().clone()

    def train():
        with made.step():
            model(x).square().sum().backward()
            optimizer.step()

    with made:
        with made.step(), torch.no_grad():
            model(x)  # an evaluation trains nothing
        with pytest.raises(RecordingError) as refused:
            train()
    why = "it goes into mul, not into a matrix product that the recorder can see"
    assert str(refused.value) == (
        f"Nothing to record in the first step: scale: {why}; shift: it is not a matrix; layer: its weight is frozen. "
        "Train the weight of at least one layer: vectors that scale or shift have no slots."
    )
    assert made.skipped["scale"] == why
    assert torch.equal(before, model.scale)
    assert not (tmp_path / "m").exists()


def test_a_training_of_plain_vectors_is_refused_before_it_begins(tmp_path):
    model = Scaled((4,))
    with pytest.raises(RecordingError, match=r"^Nothing to record: .*layer: its weight is frozen"):
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")


class Head(nn.Module):
    """Holds the bias of its own layer, as BERT's head does."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(3, 2)
        self.bias = self.decoder.bias

    def forward(self, x):
        return self.decoder(x)


def test_a_parameter_that_a_layer_holds_is_not_skipped_under_another_name(tmp_path):
    model = Head()
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert (list(recorder.summary.layers), recorder.skipped) == (["decoder"], {})


def test_copies_on_several_devices_are_refused_by_name(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.DataParallel(nn.Linear(4, 2)))
    with pytest.raises(RecordingError) as caught:
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert str(caught.value) == (
        "Part '1' of the model is an nn.DataParallel, which runs copies of its layers on "
        "several devices at once. Use DistributedDataParallel with one process for each "
        "device, or one device without either."
    )


class Others(nn.Module):
    """Layers and matrices that are of no type that is recorded, or run without hooks, beside one that is recorded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.phase, self.turn = nn.Linear(4, 4, dtype=torch.cfloat), nn.Conv1d(1, 1, 1, dtype=torch.cfloat)
        self.own, self.named = nn.Parameter(torch.randn(4, 4).cfloat()), nn.Parameter(torch.randn(4, 4).cfloat())
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.traced = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))

    def forward(self, x):
        x = self.traced(self.scripted(self.layer(x))).cfloat()
        return (self.turn(self.phase(x)[:, None])[:, 0] @ self.own + tap(x, self.named, "named")).abs()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_of_other_types_and_those_that_run_without_hooks_are_skipped(tmp_path):
    def train(recorded):
        model = Others()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ExitStack() as stack:
            if recorded:
                recorder = Recorder(model, optimizer, tmp_path / "m", quiet=True)
                stack.enter_context(recorder)
            for x in torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)):
                with recorder.step() if recorded else ExitStack():
                    learn(optimizer, model(x).square().sum())
        return model, recorder.skipped if recorded else {}

    (model, skipped), (plain, _) = train(True), train(False)
    numbers = "is complex64, and what is recorded is float16 to float64"
    hookless = "it was compiled by torch.jit, whose modules run without hooks"
    assert {name: skipped[name] for name in skipped if name != "named"} == {
        "phase": f"its weight {numbers}",
        "turn": f"its weight {numbers}",
        "own": f"its type {numbers}",
        "scripted.0": hookless,
        "traced": hookless,
    }
    assert skipped["named"] == f"its type {numbers}"
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["layer"].status.name == "exact"
        weights = memory.weights()
        assert all(weights[name].dtype == own.dtype for name, own in model.state_dict().items())
        assert all(torch.equal(weights[name], own) for name, own in model.state_dict().items() if own.is_complex())


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


class Unnamed(nn.Module):
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


@pytest.mark.parametrize(("own", "checkpointed"), [(False, True), (True, False)])
def test_a_training_of_biases_may_write_to_the_inputs_of_its_layers(tmp_path, own, checkpointed):
    def train(recorded):
        torch.manual_seed(0)
        middle = Residual(Unnamed() if own else nn.Linear(6, 6), checkpointed)
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
