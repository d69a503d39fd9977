"""Derivatives taken otherwise than by backward: the training goes on, and what is not recorded is named."""

import copy
import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import RecordingError
from dualform.record.recorder import Recorder
from tests.trainings import learn

from .listed import Opened, batches, small_net

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


def train(model, optimizer, data, transformed, recorder=None, gradients=by_grad):
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
        train(model, optimizer, data, transformed, recorder, gradients)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data, transformed, gradients=gradients)
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
def test_a_transform_that_trains_nothing_leaves_the_record_exact(tmp_path):
    model, data = small_net(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for x, y in data:
            with recorder.step(label=y):
                by_vmap(model, dict(model.named_parameters()), x, y)
                learn(optimizer, cross_entropy(model(x), y))
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 32}
    assert {layer.status.name for layer in memory.info().layers} == {"exact"}


@pytest.mark.filterwarnings("ignore:.*torch.func:RuntimeWarning")
def test_a_gradient_that_is_partly_of_a_transform_is_named(tmp_path):
    """The first step, too: a part of its gradient comes from backward."""
    model, data = small_net(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for x, y in data:
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                found = by_grad(model, dict(model.named_parameters()), x * 2, y)
                for name, parameter in model.named_parameters():
                    parameter.grad += found[name]
                optimizer.step()
    statuses = [layer.status for layer in dualform.open(tmp_path / "m").info().layers]
    assert {status.name for status in statuses} == {"approximate"}
    assert {status.reason for status in statuses} == {
        "it was called under a torch.func transform at step 0 (from step 0 on)."
    }


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


@pytest.mark.filterwarnings("ignore:layer '0'.*:RuntimeWarning", "ignore:Nothing was recorded:RuntimeWarning")
def test_a_query_set_of_a_training_by_transforms_alone_says_why_there_is_no_memory(tmp_path):
    model, data = small_net(), batches(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path / "memory", quiet=True) as recorder:
        train(model, optimizer, data, {0, 1}, recorder)
        with pytest.raises(RecordingError, match=r"So far: 0: it was called under a torch\.func transform at step 0"):
            recorder.query_set("test", data[0][0])
