"""Several backward passes in one step: those whose gradients the update uses are recorded."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.record.recorder import Recorder
from tests.cases import some
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, batches, small_net, snapshot
from .rank_threads import COUNT, Fleet, data


class Sam:
    """Sharpness-aware minimization: the weights go up along the gradient, and back before the update."""

    def __init__(self, model, optimizer, rho=0.05, copies=False):
        self.parameters, self.optimizer, self.rho, self.copies = list(model.parameters()), optimizer, rho, copies

    def up(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm() + 1e-12
        self.moves = [p.grad * (self.rho / norm) for p in self.parameters]
        self.before = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            for p, move in zip(self.parameters, self.moves, strict=True):
                p.add_(move)
        self.optimizer.zero_grad()

    def down(self):
        with torch.no_grad():
            for p, move, before in zip(self.parameters, self.moves, self.before, strict=True):
                p.copy_(before) if self.copies else p.sub_(move)
        self.optimizer.step()
        self.optimizer.zero_grad()


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize("copies", [False, True], ids=["sub_", "copy_"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sam(tmp_path, kind, copies):
    """Keys of the second pass, which the moved weights made, by a plain hook."""
    model, inputs = small_net(), []
    optimizer = OPTIMIZERS[kind](model)
    sam = Sam(model, optimizer, copies=copies)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    model[2].register_forward_hook(lambda module, args, output: inputs.append(args[0].detach().clone()))
    with recorder:
        for x, y in batches(30):
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                sam.up()
                cross_entropy(model(x), y).backward()
                sam.down()
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 8 * 30}
    assert np.array_equal(memory.keys("2"), torch.cat(inputs[1::2]).numpy())
    assert {layer.status.name for layer in memory.info().layers} == {"exact"}
    assert all(reconstruction.reconstruction_error <= 1e-5 for reconstruction in memory.verify().values())


def passes_of(path, *losses, rows=8):
    """Train 4 steps on the losses; each is told model, optimizer, inputs and labels."""
    model = small_net()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), path)
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(4, rows=rows):
            with opened.recorder.step(label=y):
                opened.optimizer.zero_grad()
                for loss in losses:
                    loss(model, opened.optimizer, x, y)
                opened.optimizer.step()
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)
    return [len(opened.sink.parts(name)) for name in ("0", "2", "4")]


def backward(model, optimizer, x, y):
    cross_entropy(model(x), y).backward()


def cleared(model, optimizer, x, y):
    cross_entropy(model(-2 * x), y).backward()
    optimizer.zero_grad()


def zeroed(model, optimizer, x, y):
    cross_entropy(model(-2 * x), y).backward()
    optimizer.zero_grad(set_to_none=False)


def of_the_inputs(model, optimizer, x, y):
    """As an attack takes it, between passes that count."""
    x = (3 * x).requires_grad_()
    torch.autograd.grad(cross_entropy(model(x), y), x)


def into_the_inputs(model, optimizer, x, y):
    x = (3 * x).requires_grad_()
    cross_entropy(model(x), y).backward(inputs=[x])


def twice(model, optimizer, x, y):
    loss = cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()


def by_hand(model, optimizer, x, y):
    parameters = list(model.parameters())
    for p, own in zip(parameters, torch.autograd.grad(cross_entropy(model(x), y), parameters), strict=True):
        p.grad = own if p.grad is None else p.grad + own


def in_parts(model, optimizer, x, y):
    x = x.clone().requires_grad_()
    hidden = checkpoint(model[:2], x, use_reentrant=True)
    cross_entropy(model[4](checkpoint(model[2:4], hidden, use_reentrant=True)), y).backward()


def none(model, optimizer, x, y):
    (0 * cross_entropy(model(x), y)).backward()


@pytest.mark.parametrize(
    ("losses", "calls"),
    [
        ([backward], 1),
        ([backward, backward], 2),
        ([cleared, backward], 1),
        ([zeroed, backward], 1),
        ([cleared, zeroed, backward, backward], 2),
        ([of_the_inputs, backward], 1),
        ([backward, of_the_inputs, backward], 2),
        ([into_the_inputs, backward], 1),
        ([twice], 1),
        ([cleared, twice], 1),
        ([by_hand], 1),
        ([cleared, by_hand, backward], 2),
        ([in_parts], 1),
        ([cleared, in_parts], 1),
        ([in_parts, in_parts], 2),
        ([none, backward], 2),
    ],
    ids=lambda value: "+".join(own.__name__ for own in value) if isinstance(value, list) else "",
)
def test_passes(tmp_path, losses, calls):
    assert passes_of(tmp_path / "m", *losses) == [4 * calls] * 3


def test_a_pass_that_is_cleared_before_the_step_ends(tmp_path):
    """The update comes once the step is left."""
    model = small_net()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(3):
            with opened.recorder.step(label=y):
                opened.optimizer.zero_grad()
                cleared(model, opened.optimizer, x, y)
                backward(model, opened.optimizer, x, y)
            opened.optimizer.step()
            snapshots.append(snapshot(model))
    assert [len(opened.sink.parts(name)) for name in ("0", "2", "4")] == [3, 3, 3]
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_layers_of_a_pass_that_is_gone_have_no_slots(tmp_path):
    model = small_net()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder:
        for x, y in batches(3):
            with opened.recorder.step(label=y):
                model(x).square().sum().backward()
                learn(opened.optimizer, model[0](x).square().sum())
                opened.optimizer.zero_grad()
    reason = "its gradients were cleared before an update used them"
    assert opened.sink.skipped == {"2": reason, "4": reason}
    assert opened.sink.defects == []


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_where_the_first_pass_of_sam_is_outside_the_step(tmp_path, kind):
    model = small_net()
    optimizer = OPTIMIZERS[kind](model)
    sam = Sam(model, optimizer)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for x, y in batches(10):
            cross_entropy(model(x), y).backward()
            sam.up()
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                sam.down()
    for layer in some(dualform.open(tmp_path / "m").info().layers):
        assert layer.status.name == "approximate"
        assert layer.status.reason == (
            "weights were changed inside step 0, before its update; where SAM moves them, its first pass belongs into "
            "the step, too (from step 0 on)."
        )


def test_a_penalty_of_gradients_is_named(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for x, y in batches(4):
            with recorder.step(label=y):
                optimizer.zero_grad()
                x.requires_grad_()
                loss = cross_entropy(nn.functional.gelu(model(x)), y)
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                (loss + slope.square().sum()).backward()
                optimizer.step()
    statuses = {layer.name: layer.status for layer in dualform.open(tmp_path / "m").info().layers}
    assert statuses["0"].name == "approximate"
    assert "of the gradient of 0.weight at step 0 is not in the recorded slots" in statuses["0"].reason


def test_without_values_passes_that_may_be_gone_are_named(tmp_path):
    model = small_net()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", values=False)
    with opened.recorder:
        for x, y in batches(2):
            with opened.recorder.step(label=y):
                cleared(model, opened.optimizer, x, y)
                backward(model, opened.optimizer, x, y)
                opened.optimizer.step()
    reason = (
        "2 backward passes ran in step 0, with gradients cleared in between: slots of all of them are there, used or "
        "not"
    )
    assert {(step, what) for _, step, what in opened.sink.defects} == {(0, reason)}


def test_sam_on_several_ranks(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        sam = Sam(model, optimizer, copies=True)
        for step in range(6):
            x, y = data(rank, step)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                sam.up()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                sam.down()

    fleet.run(train)
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 6 * COUNT * len(data(0, 0)[1])}
    assert {layer.status.name for layer in memory.info().layers} == {"exact"}
