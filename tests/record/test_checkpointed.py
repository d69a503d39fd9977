"""Recording costs a checkpointed training no product: what runs again stops where it would without the recorder."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dualform import tap
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, snapshot

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


class Products(TorchDispatchMode):
    """Counts the products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in PRODUCTS
        return func(*args, **(kwargs or {}))


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)) for _ in range(3)))


def run(model, x, reentrant=False, dropout=0.0, twice=False):
    x = x.clone().requires_grad_()
    for block in model:
        x = checkpoint(block, x, use_reentrant=reentrant)
        x = nn.functional.dropout(x, dropout)
    loss = x.square().mean()
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()


def train(model, path=None, steps=3, **options):
    """Products of each step's forward and backward pass; the opened recorder and the weights around the steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    opened = None if path is None else Opened(model, optimizer, path)
    counts, snapshots, generator = [], [snapshot(model)], torch.Generator().manual_seed(1)

    def step(x):
        optimizer.zero_grad()
        with Products() as products:
            run(model, x, **options)
        optimizer.step()
        counts.append(products.count)
        snapshots.append(snapshot(model))

    torch.manual_seed(2)
    inputs = [torch.randn(5, 6, generator=generator) for _ in range(steps)]
    if opened is None:
        for x in inputs:
            step(x)
        return counts, None, snapshots
    with opened.recorder:
        for x in inputs:
            with opened.recorder.step():
                step(x)
    return counts, opened, snapshots


@pytest.mark.parametrize(
    "options",
    [{}, {"reentrant": True}, {"dropout": 0.5}, {"twice": True}],
    ids=["", "reentrant", "dropout", "a second pass back"],
)
def test_recording_makes_no_product_again(tmp_path, options):
    model, twin = blocks(), blocks()
    counts, opened, snapshots = train(model, tmp_path / "m", **options)
    alone, _, _ = train(twin, **options)
    assert counts == alone
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert opened.sink.defects == []
    assert all(len(opened.sink.parts(name)) == 3 for name in opened.sink.layer_names)
    assert_rebuilt(opened.sink, snapshots)


class Own(nn.Module):
    """A block whose linear layer is called by keyword, after a hook that changes its input, and once in vain."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.failing = nn.Linear(6, 6), nn.Linear(6, 6), False
        self.second.register_forward_hook(self._fail)

    def _fail(self, *_):
        if self.failing:
            raise ValueError("not this time")

    def forward(self, x):
        self.failing = True
        try:
            self.second(x)
        except ValueError:
            self.failing = False
        return self.second(torch.tanh(self.first(input=x)))


def test_calls_of_other_kinds(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Own(), Own())
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    snapshots, x = [snapshot(model)], torch.randn(5, 6)
    with opened.recorder:
        model[0].second.register_forward_pre_hook(lambda module, args: (2 * args[0],))
        for _ in range(3):
            with opened.recorder.step():
                opened.optimizer.zero_grad()
                run(model, x)
                opened.optimizer.step()
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_under_autocast_the_key_is_saved_as_the_product_has_it(tmp_path):
    model = blocks()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, opened.recorder.step(), torch.autocast("cpu", torch.bfloat16):
        run(model, torch.randn(5, 6))
    assert {layer.dtype for layer in opened.sink.layers} == {"bfloat16"}
    assert all(tap.early is None for tap in opened.recorder._training._taps)


class Square(nn.Module):
    """A checkpoint in which tensors of one shape are saved, so that only their order tells them apart."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.attend, self.states = nn.MultiheadAttention(4, 1, bias=False), nn.GRU(4, 4)
        self.own, self.named = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))

    def body(self, x):
        x = self.first(x)
        x = x + self.attend(x, x, x)[0] + self.states(x)[0] + x @ self.own + tap(x, self.named, "named")
        return self.last(x)

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


@pytest.mark.parametrize("crossing", ["forward before", "backward after"])
def test_a_checkpoint_that_runs_again_on_the_other_side_of_a_steps_end(tmp_path, crossing):
    def train(recorder=None):
        model, losses = Square(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        opened = None if recorder is None else recorder(model, optimizer)
        inputs = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))

        def update(x=None):
            learn(optimizer, losses.pop() if x is None else model(x).square().sum())

        if opened is None:
            for x in inputs:
                update(x)
            return model
        with opened.recorder:
            for number, x in enumerate(inputs):
                if number == 0:
                    with opened.recorder.step():
                        update(x)
                elif crossing == "forward before":
                    losses.append(model(x).square().sum())
                    with opened.recorder.step():
                        update()
                else:
                    with opened.recorder.step():
                        losses.append(model(x).square().sum())
                    update()
        return model

    model, twin = train(lambda *of: Opened(*of, tmp_path / "m")), train()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
