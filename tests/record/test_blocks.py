"""Layers that stand for blocks of parameters: transposed ones, tied ones, flattened ones."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import dualform
from dualform.record.taps import Parameter
from tests.record.block_trainings import (
    CLASSES,
    B,
    Conv1D,
    D,
    L,
    Packed,
    Transposed,
    adamw,
    assert_exact,
    assert_live,
    brought,
    parted,
    sgd,
    statuses,
    train,
)
from tests.record.product_tap import Product


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_a_transposed_weight(tmp_path, momentum_before):
    model = Transposed()
    seen = []
    model.up.register_forward_hook(lambda module, args, output: seen.append(args[0].detach().clone().reshape(-1, D)))
    initial = train(model, tmp_path / "m", momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["up", "down", "head"])
        np.testing.assert_array_equal(memory.keys("up"), torch.cat(seen[momentum_before:]).numpy())
        assert_live(memory, model)
        queries = torch.randn(4, D, generator=torch.Generator().manual_seed(5))
        np.testing.assert_allclose(
            np.asarray(memory.output("up", queries.numpy())), model.up(queries).detach().numpy(), atol=1e-5
        )
        np.testing.assert_array_equal(memory.weights(at_step=0)["up.weight"].numpy(), initial["up.weight"].numpy())
        assert memory.weights().not_recorded == ()


def test_a_transposed_weight_with_a_forward_of_its_own_is_not_recorded(tmp_path):
    class Doubled(Conv1D):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(Conv1D(D, 5), Doubled(5, CLASSES))
    recorder = dualform.Recorder(model, sgd(model), tmp_path / "m")
    assert recorder.skipped == {"1": "Doubled has a forward of its own"}


def test_columns_of_a_transposed_weight(tmp_path):
    model = Packed()
    train(model, tmp_path / "m", model.taps, momentum_before=2)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["q", "k", "v", "head"])
        assert_live(memory, model)
        assert memory.weights().not_recorded == ()


# Tied weights, one of them transposed.


class TiedTransposed(nn.Module):
    """An autoencoder whose decoder is its encoder's weight, transposed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.bias, self.head = nn.Linear(D, 5), nn.Parameter(torch.zeros(D)), nn.Linear(D, CLASSES)
        shared = Parameter("encoder.weight", 0, 5, transposed=True)
        self.decode = Product("decoder", 5, D, {shared: self.encoder.weight, Parameter("bias", 5, 6): self.bias})

    def forward(self, x):
        return self.head(self.decode(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias).mean(1))


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_tied_weights_of_which_one_is_transposed(tmp_path, momentum_before):
    model = TiedTransposed()
    train(model, tmp_path / "m", [model.decode], momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["decoder", "encoder", "head"])
        np.testing.assert_array_equal(memory.keys("decoder"), torch.cat(model.decode.seen).numpy())
        assert_live(memory, model)
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(5))
        live = linear(x, model.encoder.weight.T, model.bias).detach().numpy()
        np.testing.assert_allclose(np.asarray(memory.output("decoder", x.numpy())), live, atol=1e-5)
        terms = brought(memory, "encoder", "a") + brought(memory, "decoder", "a").T
        unrecorded_change, left = parted(memory, "encoder.weight")
        np.testing.assert_allclose(left - unrecorded_change, terms, atol=1e-6)


# A convolution of kernel size 1 is a product of each pixel.


class Pointwise(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(4, 6, 1), nn.Linear(6, CLASSES)
        blocks = {Parameter("conv.weight", 0, 4): self.conv.weight, Parameter("conv.bias", 4, 5): self.conv.bias}
        self.product = Product("pixels", 4, 6, blocks)

    def forward(self, x):
        pixels = x.flatten(2).transpose(1, 2)
        return self.head(torch.relu(self.product(pixels, self.conv.weight.flatten(1), self.conv.bias)).mean(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["as usual", "channels last"])
def test_a_weight_of_four_axes(tmp_path, layout):
    model = Pointwise().to(memory_format=layout)
    train(model, tmp_path / "m", [model.product], shape=(B, 4, 3, 3))
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["pixels", "head"])
        assert_live(memory, model)


# An optimizer that is run again.


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
@pytest.mark.parametrize("network", [Transposed, Packed, TiedTransposed, Pointwise])
def test_blocks_under_adamw(tmp_path, network, momentum_before):
    model = network()
    taps = [tap for name in ("taps", "decode", "product") for tap in np.ravel(getattr(model, name, []))]
    shape = (B, 4, 3, 3) if network is Pointwise else (B, L, D)
    train(model, tmp_path / "m", taps, shape=shape, momentum_before=momentum_before, make=adamw)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, statuses(memory))
        assert_live(memory, model)
        for name, value in memory.weights().items():
            unrecorded_change, left = parted(memory, name)
            assert 1e-4 < np.abs(left - unrecorded_change).max() < np.abs(value.numpy() - unrecorded_change).max() + 0.1
