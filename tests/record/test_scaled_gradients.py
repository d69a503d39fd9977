"""Gradients under a GradScaler: the factor undoes the scale, and what overflowed is no slot."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from tests.cases import some
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, batches, small_net, snapshot


@pytest.mark.parametrize("fused", [False, True], ids=["unscaled before", "unscaled by the optimizer"])
def test_the_factor_undoes_the_scale(tmp_path, fused):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(7):
            with opened.recorder.step():
                optimizer.zero_grad()
                scaler.scale(cross_entropy(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    factors = [log.factors[0].factor for log in opened.sink.logs.values()]
    assert factors == pytest.approx([1 / 1024] * 3 + [1 / 2048] * 3 + [1 / 4096], rel=1e-5)
    assert_rebuilt(opened.sink, snapshots)


def test_a_float16_step_that_overflowed_is_dropped(tmp_path):
    model = nn.Linear(5, 3).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for scale in (1.0, 1e6, 1.0):
            with opened.recorder.step():
                optimizer.zero_grad()
                (model(torch.ones(4, 5).half()) * scale).sum().backward()
                if scale == 1:
                    optimizer.step()
    assert [batch.step for batch in opened.sink.batches if batch.layers] == [0, 1]
    assert opened.recorder.steps == 2
    assert opened.sink.defects == []


def half(model, scale):
    """Rounds gradients to float16, as autocast does; what overflows becomes infinite."""
    for parameter in model.parameters():
        parameter.grad = (parameter.grad * scale).half().float() / scale


def test_a_skipped_update_is_attributed_to_the_right_steps_in_float16(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = Opened(model, optimizer, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for number, (x, y) in enumerate(batches(9)):
            with opened.recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                half(model, 1024.0)
                if number not in (2, 3, 6):
                    optimizer.step()
            snapshots.append(snapshot(model))
    sink = opened.sink
    assert sink.defects  # float16 leaves more unexplained than float32 would
    assert {n: log.first_step for n, log in sink.logs.items() if log.updated} == {n: n for n in (0, 1, 4, 5, 7, 8)}
    assert max(rows[-1].accumulated / rows[-1].way for rows in sink.watch.values()) < 1e-3
    for name, weight in snapshots[-1].items():
        assert np.linalg.norm(sink.rebuilt(name, 9) - weight) < 1e-3 * np.linalg.norm(weight - snapshots[0][name])


def test_accumulated_steps_in_float16_are_all_used(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(8)):
            with opened.recorder.step():
                cross_entropy(model(x), y).backward()
                if number % 4 == 3:
                    half(model, 1024.0)
                    optimizer.step()
                    optimizer.zero_grad()
    assert {n: log.first_step for n, log in opened.sink.logs.items() if log.updated} == {3: 0, 7: 4}


def test_a_scaler_that_skips_an_update_under_autocast(tmp_path):
    """An overflow in the sum that a weight's gradient is: no slot holds infinity, and the scaler skips the update."""
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=100)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(8)):
            with opened.recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = cross_entropy(model(x).float(), y)
                scaler.scale(loss).backward()
                if number == 3:
                    model[2].weight.grad[0, 0] = float("inf")
                scaler.step(optimizer)
                scaler.update()
    sink = opened.sink
    assert {n: log.first_step for n, log in sink.logs.items() if log.updated} == {n: n for n in range(8) if n != 3}
    factors = [log.factors[0].factor for log in sink.logs.values() if log.updated]
    assert factors == pytest.approx([1 / 64] * 3 + [1 / 32] * 4, rel=1e-2)
    assert max(rows[-1].accumulated / rows[-1].way for rows in sink.watch.values()) < 5e-3


def test_a_gradient_that_is_rounding_has_the_factor_of_its_layer(tmp_path):
    """The bias before a BatchNorm: what the batch's mean takes away cancels in its gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for step, (x, y) in enumerate(batches(12)):
            with opened.recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                for parameter in model.parameters():
                    parameter.grad *= 0.5 if step % 2 else 1.0
                optimizer.step()
    assert opened.sink.defects == []
    for step, log in opened.sink.logs.items():
        found = {factor.parameter: factor.factor for factor in log.factors}
        assert sorted(found) == ["0.bias", "0.weight", "3.bias", "3.weight"]
        assert list(found.values()) == pytest.approx([0.5 if step % 2 else 1.0] * 4, rel=1e-4)


def test_a_gradient_that_was_set_to_zero_keeps_its_factor(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for x, y in batches(3):
            with opened.recorder.step():
                learn(optimizer, cross_entropy(model(x), y), lambda: model[0].bias.grad.zero_())
    for log in some(opened.sink.logs.values()):
        assert {factor.parameter: factor.factor for factor in log.factors}["0.bias"] == 0.0


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
