"""Transposed convolutions: a slot is a place of the input, its value the patch of the gradient that it reaches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.record.taps import ModuleTap
from tests.trainings import record_steps

from .block_trainings import assert_exact
from .test_convolution import CLASSES, train

KINDS = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


@st.composite
def transposed(draw):
    """A transposed convolution in float64, and an input."""
    dimensions = draw(st.integers(1, 3))

    def numbers(least, most):
        return tuple(draw(st.integers(least, most)) for _ in range(dimensions))

    kernel, stride, padding, dilation, size = numbers(1, 3), numbers(1, 3), numbers(0, 2), numbers(1, 3), numbers(2, 4)
    more = tuple(draw(st.integers(0, max(own) - 1)) for own in zip(stride, dilation, strict=True))
    sides = zip(size, kernel, stride, padding, dilation, more, strict=True)
    if min((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, d, m in sides) < 1:
        padding = (0,) * dimensions
    torch.manual_seed(0)
    layer = KINDS[dimensions - 1](2, 3, kernel, stride, padding, more, dilation=dilation).double()
    batch = draw(st.sampled_from([(2,), ()]))
    return layer, torch.randn(*batch, 2, *size, dtype=torch.float64)


@settings(max_examples=13, deadline=None)
@given(transposed())
def test_keys_and_values_make_the_gradient(made):
    layer, x = made
    tap, output = ModuleTap.kind_of(layer)("up", layer), layer(x)
    error = torch.randn_like(output)
    output.backward(error)
    key = tap.call_of((x,), {}, output).key
    values = tap.error_of(key, (), (error,))
    assert values.shape == (*key.shape[:-1], tap.d_out)
    summed = key.flatten(0, -2).T @ values.flatten(0, -2)
    torch.testing.assert_close(summed, layer.weight.grad.flatten(1), rtol=1e-12, atol=1e-12)


class Upsampling(nn.Module):
    """Makes maps smaller, and larger again."""

    def __init__(self, dimensions=2, **options):
        super().__init__()
        torch.manual_seed(0)
        down = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.down, self.up = down(2, 5, 2, stride=2), KINDS[dimensions - 1](5, 4, 3, **options)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        self.seen = torch.tanh(self.down(x))
        return self.head(torch.relu(self.up(self.seen)).flatten(2).mean(2))


SETTINGS = {
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "of one dimension": {"dimensions": 1, "dilation": 2, "stride": 1, "output_padding": 1},
    "of three dimensions": {"dimensions": 3, "stride": (2, 1, 2), "padding": (0, 1, 1)},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_a_transposed_convolution(tmp_path, options):
    model = Upsampling(**options)
    keys = []
    model.up.register_forward_hook(lambda module, args, output: keys.append(args[0].detach().movedim(1, -1)))
    images = train(model, tmp_path / "m", size=(7, 6, 4)[: options.get("dimensions", 2)])
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["down", "up", "head"])
        assert [layer.space for layer in memory.info().layers] == ["patch", "patch", "sample"]
        np.testing.assert_array_equal(memory.keys("up"), torch.cat(keys).reshape(-1, 5).numpy())
        weights = memory.weights()
        assert (weights.others, weights.not_recorded) == (("up.bias",), ())
        np.testing.assert_allclose(weights["up.weight"].numpy(), model.up.weight.detach().numpy(), atol=2e-6)
        patches = np.asarray(memory.output("up", memory.keys("up", [0, 3])))
        wide = model.up.weight.detach().flatten(1).numpy()
        np.testing.assert_allclose(patches, memory.keys("up", [0, 3]) @ wide, atol=1e-5)
        assert len(images) * keys[0][0, ..., 0].numel() == len(memory.keys("up"))
        masked = memory.weights(where="label = 1 AND dataset = 'a'")
        assert masked["up.weight"].shape == model.up.weight.shape
        assert torch.equal(masked["up.bias"], model.up.bias)


def test_an_output_size_may_be_said(tmp_path):
    """It is the padding of the output, said call by call."""
    up = nn.ConvTranspose2d(3, 2, 3, stride=2, bias=False)
    optimizer = torch.optim.SGD(up.parameters(), lr=0.01)
    record_steps(
        dualform.Recorder(up, optimizer, tmp_path / "m"),
        optimizer,
        [(9, 9), (10, 9), (9, 10)],
        lambda *size: up(torch.randn(2, 3, 4, 4), output_size=size).square().mean(),
    )
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, [""])


def test_groups_of_a_transposed_convolution_are_not_recorded(tmp_path):
    model = Upsampling()
    model.up = nn.ConvTranspose2d(5, 5, 3, groups=5)
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert recorder.skipped == {"up": "it is a transposed convolution in 5 groups"}
