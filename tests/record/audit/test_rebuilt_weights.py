"""Whatever SGD does, and whatever scales its gradients, the record rebuilds every weight as of every step."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from tests.record.listed import Opened, assert_rebuilt, batches, small_net, snapshot

VARIANTS = {
    "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    "weight decay and nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    "maximize": {"lr": 0.01, "momentum": 0.5, "maximize": True, "weight_decay": 0.01},
    "tensor rate": {"lr": torch.tensor(0.1), "momentum": 0.9},
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


@pytest.mark.parametrize(
    ("settings", "clip"), [*zip(VARIANTS.values(), cycle([None, 0.3]), strict=False)], ids=VARIANTS
)
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


@pytest.mark.parametrize(("every", "outside"), [(1, True), (3, False), (3, True)])
def test_updates_of_several_steps_inside_and_outside_the_step(tmp_path, every, outside):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sink, snapshots = record(model, optimizer, tmp_path / "m", batches(8), every=every, outside=outside, clip=0.5)
    assert sink.defects == []
    assert_rebuilt(sink, snapshots)
    assert [log.updated for log in sink.logs.values()] == [(n + 1) % every == 0 for n in range(8)]
    assert [log.first_step for log in sink.logs.values() if log.updated] == list(range(0, 8 - every + 1, every))


def by_one_factor(model, scale):
    for own in model.parameters():
        own.grad *= scale


SCALINGS = {
    "clipped together": lambda model, step: clip_grad_norm_(model.parameters(), 0.1),
    "each clipped": lambda model, step: [clip_grad_norm_(layer.parameters(), 0.1) for layer in model[::2]],
    "all by ten": lambda model, step: by_one_factor(model, 10.0),
    "one by another at each step": lambda model, step: by_one_factor(model[2], 2.0 + step % 2),
    "one by ten, seven times": lambda model, step: by_one_factor(model[2], 10.0 if step % 8 else 1.0),
}


def scaled(path, monkeypatch, scaling=None, output=1.0, count=20):
    """A training whose gradients are scaled, and the output of its middle layer where the recorder does not look."""
    model, plain = small_net(), functional.linear
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    opened = Opened(model, optimizer, path)

    def linear(x, weight, bias=None):
        return plain(x, weight, bias) * (output if weight is model[2].weight else 1.0)

    monkeypatch.setattr(functional, "linear", linear)
    with opened.recorder:
        for step, (x, y) in enumerate(batches(count)):
            with opened.recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if scaling is not None:
                    scaling(model, step)
                optimizer.step()
    return opened.sink


@pytest.mark.parametrize("scaling", SCALINGS)
def test_factors_that_all_layers_have_or_that_do_not_last_are_no_warning(tmp_path, monkeypatch, scaling):
    assert scaled(tmp_path / "m", monkeypatch, SCALINGS[scaling]).defects == []


@pytest.mark.parametrize("clipped", [False, True], ids=["", "clipped together"])
def test_a_lasting_factor_of_one_layer_is_warned_of_once(tmp_path, monkeypatch, clipped):
    words = r"^the gradient of layer '2' was 10 times the sum over its slots at each of 8 updates, unlike that of other"
    with pytest.warns(RuntimeWarning, match=words) as told:
        scaled(tmp_path / "m", monkeypatch, SCALINGS["clipped together"] if clipped else None, output=10.0)
    assert len(told) == 1
