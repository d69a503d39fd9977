"""Several passes in one step, closures, and derivatives that are not taken by backward."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from dualform.record.recorder import Recorder
from tests.cases import some
from tests.record.listed import Opened, assert_rebuilt, batches, small_net, snapshot
from tests.trainings import learn


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


@pytest.mark.parametrize(("kind", "copies"), [("sgd", False), ("adam", True)])
def test_sam(tmp_path, kind, copies):
    """Keys of the second pass, which the moved weights made, by a plain hook."""
    model, inputs = small_net(), []
    optimizer = OPTIMIZERS[kind](model)
    sam = Sam(model, optimizer, copies=copies)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    model[2].register_forward_hook(lambda module, args, output: inputs.append(args[0].detach().clone()))
    with recorder:
        for x, y in batches(10):
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                sam.up()
                cross_entropy(model(x), y).backward()
                sam.down()
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 8 * 10}
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
        ([backward, backward], 2),
        ([cleared, backward], 1),
        ([cleared, zeroed, backward, backward], 2),
        ([backward, of_the_inputs, backward], 2),
        ([into_the_inputs, backward], 1),
        ([cleared, twice], 1),
        ([cleared, by_hand, backward], 2),
        ([cleared, in_parts], 1),
        ([in_parts, in_parts], 2),
        ([none, backward], 2),
    ],
    ids=lambda value: "+".join(own.__name__ for own in value) if isinstance(value, list) else "",
)
def test_passes(tmp_path, losses, calls):
    assert passes_of(tmp_path / "m", *losses) == [4 * calls] * 3


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


def test_where_the_first_pass_of_sam_is_outside_the_step(tmp_path):
    model = small_net()
    optimizer = OPTIMIZERS["adam"](model)
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


class Looking(torch.optim.Optimizer):
    """Evaluates its closure as often as it is told, and moves along each gradient."""

    def __init__(self, parameters, times):
        super().__init__(parameters, {"lr": 0.05})
        self.times = list(times)

    def step(self, closure):
        for _ in range(self.times.pop(0)):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p -= 0.05 * p.grad
        return loss


def train_by_closure(model, optimizer, data, recorder=None):
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        if recorder is None:
            optimizer.step(closure)
        else:
            with recorder.step(label=y):
                optimizer.step(closure)


def test_a_closure_that_is_evaluated_twice_is_refused_at_the_first_step(tmp_path):
    model = small_net()
    optimizer = Looking(model.parameters(), [2])
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with pytest.raises(RecordingError) as raised, recorder:
        train_by_closure(model, optimizer, batches(1), recorder)
    assert str(raised.value) == (
        "Looking evaluated its closure more than once in the update of step 0, so no one set of "
        "slots explains the change of the weights. Use an optimizer that takes one gradient for "
        "each update, or record only scores: values=False."
    )
    assert not (tmp_path / "m").exists()


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_later_it_is_a_defect_and_the_training_goes_on(tmp_path):
    model, twin, data = small_net(), small_net(), batches(5)
    optimizer = Looking(model.parameters(), [1, 1, 3, 1, 1])
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        train_by_closure(model, optimizer, data, recorder)
    train_by_closure(twin, Looking(twin.parameters(), [1, 1, 3, 1, 1]), data)
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 40}
    for layer in memory.info().layers:
        assert layer.status.reason.endswith(
            "From step 2 on, Looking evaluated its closure more than once in the update of step 2."
        )


def test_lbfgs_is_recorded_for_scores(tmp_path):
    model, twin, data, keys = small_net(), small_net(), batches(3), []
    model[2].register_forward_hook(lambda module, args, output: keys.append(args[0].detach().clone()))
    options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(model.parameters(), **options)
    recorder = Recorder(model, optimizer, tmp_path / "m", values=False)
    with recorder:
        train_by_closure(model, optimizer, data, recorder)
    train_by_closure(twin, torch.optim.LBFGS(twin.parameters(), **options), data)
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    memory = dualform.open(tmp_path / "m")
    assert len(keys) > 6
    assert torch.equal(torch.from_numpy(memory.keys("2")), torch.cat(keys))
    (reason,) = {layer.status.reason for layer in memory.info().layers}
    assert reason.endswith("with gradients cleared in between: slots of all of them are there, used or not.")


TOLD = (
    "layer '0': it was called under a torch.func transform at step {0}. The gradients of such calls are not "
    "recorded, and the status of layers trained by them says so. Use loss.backward() to record them."
)


def loss_of(model, parameters, x, y):
    return cross_entropy(functional_call(model, parameters, (x,)), y)


def by_grad(model, parameters, x, y):
    return grad(lambda own: loss_of(model, own, x, y))(parameters)


def by_vmap(model, parameters, x, y):
    each = vmap(grad(lambda own, a, b: loss_of(model, own, a[None], b[None])), (None, 0, 0))
    return {name: part.mean(0) for name, part in each(parameters, x, y).items()}


def by_jvp(model, parameters, x, y):
    """A directional derivative beside the training's own gradient."""
    jvp(lambda own: loss_of(model, own, x, y), (parameters,), (parameters,))
    return by_grad(model, parameters, x, y)


def train_transformed(model, optimizer, data, transformed, recorder=None, gradients=by_grad):
    """The steps whose numbers are `transformed` take their gradients without backward."""
    for number, (x, y) in enumerate(data):
        step = recorder.step(label=y) if recorder else warnings.catch_warnings()
        with step:
            optimizer.zero_grad()
            if number in transformed:
                found = gradients(model, dict(model.named_parameters()), x, y)
                for name, parameter in model.named_parameters():
                    parameter.grad = found[name].detach()
            else:
                cross_entropy(model(x), y).backward()
            optimizer.step()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, in jvp
@pytest.mark.parametrize(
    ("gradients", "transformed"), [(by_grad, {0, 1}), (by_vmap, {3}), (by_jvp, {0, 1})], ids=["grad", "vmap", "jvp"]
)
def test_a_transform_never_ends_the_training(tmp_path, gradients, transformed):
    model, twin, data = small_net(), small_net(), batches(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder, pytest.warns(RuntimeWarning) as told:
        train_transformed(model, optimizer, data, transformed, recorder, gradients)
    train_transformed(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data, transformed, gradients=gradients)
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert [str(w.message) for w in told if w.category is RuntimeWarning] == [TOLD.format(min(transformed))]
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 8 * (6 - len(transformed))}
    statuses = {layer.name: layer.status for layer in memory.info().layers}
    if transformed == {3}:
        assert {status.reason for status in statuses.values()} == {
            "it was called under a torch.func transform at step 3 (from step 3 on)."
        }
    else:  # what was trained before the first recorded step is W_0
        assert {status.name for status in statuses.values()} == {"exact"}


@pytest.mark.filterwarnings("ignore:.*torch.func:RuntimeWarning")
@pytest.mark.parametrize(("trains", "status"), [(False, "exact"), (True, "approximate")], ids=["thrown away", "added"])
def test_a_transform_beside_backward_is_named_if_it_trains(tmp_path, trains, status):
    """From the first step on, too: a part of its gradient comes from backward."""
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for x, y in batches(4):
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                found = by_vmap(model, dict(model.named_parameters()), x * 2, y)
                for name, parameter in model.named_parameters():
                    parameter.grad += trains * found[name]
                optimizer.step()
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 32}
    assert {layer.status.name for layer in memory.info().layers} == {status}
    reason = "it was called under a torch.func transform at step 0 (from step 0 on)." if trains else ""
    assert {layer.status.reason for layer in memory.info().layers} == {reason}


@pytest.mark.parametrize("recurrent", [False, True], ids=["linear", "gru"])
def test_forward_derivatives_pass_a_tap(tmp_path, recurrent):
    torch.manual_seed(0)
    model = nn.GRU(5, 3, batch_first=True) if recurrent else nn.Linear(5, 3)
    twin = copy.deepcopy(model)
    x = torch.randn(4, 6, 5)

    def slope(network):
        with forward_ad.dual_level():
            given = forward_ad.make_dual(x, torch.ones_like(x))
            made = network(given)[0] if recurrent else network(given)
            made.square().sum().backward()
            return forward_ad.unpack_dual(made).tangent

    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, opened.recorder.step():
        found = slope(model)
    assert torch.equal(found, slope(twin))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert len(opened.sink.keys(opened.sink.layer_names[0])) == 24
    assert opened.sink.defects == []
