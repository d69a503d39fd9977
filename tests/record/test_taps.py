"""A tap needs no module: a product computed by hand is recorded by a tap of one's own."""

import numpy as np
import pytest
import torch
from torch import nn

from dualform.errors import RecordingError
from dualform.store.layer import Parameter

from .listed import Opened, assert_rebuilt, snapshot
from .product_tap import Product


def product(weight):
    d_out, d_in = weight.shape
    return Product("weight", d_in, d_out, {Parameter("weight", 0, d_in): weight})


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.last = nn.Parameter(torch.randn(4, 3)), nn.Linear(4, 2)
        self.product = product(self.weight)

    def forward(self, x):
        return self.last(torch.relu(self.product(x, self.weight)))


def test_a_product_by_hand(tmp_path):
    model = ByHand()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", taps=[model.product])
    x, snapshots = torch.randn(6, 3), [snapshot(model)]
    with opened.recorder:
        for _ in range(3):
            with opened.recorder.step(label=np.arange(6)):
                opened.optimizer.zero_grad()
                model(x).square().sum().backward()
                opened.optimizer.step()
            snapshots.append(snapshot(model))
        opened.recorder.probe("test", x)
    assert model.product.listener is None
    assert [(layer.name, layer.d_in, layer.repeats) for layer in opened.sink.layers] == [
        ("weight", 3, True), ("last", 4, False),
    ]  # fmt: skip
    np.testing.assert_array_equal(opened.sink.keys("weight"), torch.cat([x] * 3).numpy())
    np.testing.assert_array_equal(opened.sink.probes["test"][0]["weight"], x.numpy())
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_a_layer_says_what_its_product_was_computed_in(tmp_path):
    for dtype, said in ((torch.bfloat16, "bfloat16"), (torch.float64, "float32"), (torch.float32, "float32")):
        model = nn.Linear(3, 2, dtype=dtype)
        opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
        with opened.recorder, opened.recorder.step():
            model(torch.randn(4, 3, dtype=dtype)).square().sum().backward()
        assert [layer.dtype for layer in opened.sink.layers] == [said]


def test_under_autocast_a_layer_says_bfloat16(tmp_path):
    model = nn.Linear(3, 2)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, opened.recorder.step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 3)).float().square().sum()
        loss.backward()
    assert [layer.dtype for layer in opened.sink.layers] == ["bfloat16"]


def test_a_tap_of_another_shape_than_it_says_is_refused_before_the_first_step(tmp_path):
    model = ByHand()
    tap = product(model.weight)
    tap.parameters = {Parameter("weight", 0, 3): nn.Parameter(torch.ones(4, 3, 3))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RecordingError) as raised:
        Opened(model, optimizer, tmp_path / "m", taps=[tap])
    assert raised.value.message == "layer 'weight': weight has shape [4, 9] where its tap says [4, 3]."
