"""Gradients under a GradScaler: the factor undoes the scale, and what overflowed is no slot."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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
    assert {reason.split(": ")[1] for _, _, reason in opened.sink.defects} <= {
        "it was computed in float16, which rounds it"
    }
