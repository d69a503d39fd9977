"""Convolutions: a slot is a place of the output, or of the input of a transposed one; against torch itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record.taps import ModuleTap
from tests.record.taps.block_trainings import assert_exact
from tests.trainings import learn, record_steps

STEPS, B, CLASSES = 6, 4, 3


class Network(nn.Module):
    def __init__(self, second=None, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 5, **{"kernel_size": 3, **options})
        self.second = second or nn.Conv2d(5, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


def train(model, path, size=(7, 6), steps=STEPS, **options):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    images = []
    with dualform.Recorder(model, optimizer, path, **options) as recorder:
        for step in range(steps):
            images.append(torch.randn(B, 2, *size, generator=generator))
            y = torch.randint(0, CLASSES, (B,), generator=generator)
            with recorder.step(dataset="a" if step < steps // 2 else "b", label=y, sample=np.arange(B)):
                learn(optimizer, cross_entropy(model(images[-1]), y))
    return torch.cat(images)


@st.composite
def convolutions(draw):
    """A convolution in float64, and maps that it fits."""
    dimensions = draw(st.integers(1, 3))

    def numbers(least, most):
        return tuple(draw(st.integers(least, most)) for _ in range(dimensions))

    kernel, stride, padding, dilation = numbers(1, 3), numbers(1, 3), numbers(0, 2), numbers(1, 3)
    sizes = [far * (k - 1) + 1 + draw(st.integers(0, 3)) for k, far in zip(kernel, dilation, strict=True)]
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    conv = kind(2, 3, kernel, stride, padding, dilation).double()
    return conv, torch.randn(2, 2, *sizes, dtype=torch.float64)


@settings(max_examples=13, deadline=None)
@given(convolutions())
def test_keys_and_values_make_the_gradient(made):
    conv, maps = made
    tap, output = ModuleTap.kind_of(conv)("conv", conv), conv(maps)
    error = torch.randn_like(output)
    output.backward(error)
    key = tap.call_of((maps,), {}, output).key
    keys = torch.cat([rows for _, rows in tap.key_form.blocks(key)])
    values = tap.error_of(key, (), (error,)).flatten(0, 1)
    assert (len(maps), len(keys) // len(maps)) == tap.key_form.leading(key)
    torch.testing.assert_close(values.T @ keys, conv.weight.grad.flatten(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.sum(0), conv.bias.grad, rtol=1e-12, atol=1e-12)


def test_spaces(tmp_path):
    train(Network(), tmp_path / "alike")
    train(Network(second=nn.Conv2d(5, 4, 3)), tmp_path / "apart")
    with dualform.open(tmp_path / "alike") as memory:
        assert [layer.space for layer in memory.info().layers] == ["patch", "patch", "sample"]
        columns = memory.slots(np.arange(40), "patch")
        np.testing.assert_array_equal(columns["position"], np.arange(40) % 20)
        np.testing.assert_array_equal(columns["sample"], np.arange(40) // 20)
    with dualform.open(tmp_path / "apart") as memory:
        assert [layer.space for layer in memory.info().layers] == ["first", "second", "sample"]


def test_groups_whose_names_are_taken_are_not_recorded(tmp_path):
    model = Network(second=nn.Conv2d(5, 5, 3, groups=5))
    model.second.add_module("0", nn.Linear(2, 2))
    made = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert made.skipped["second"] == "it holds modules, whose names would be those of its 5 groups"


def train_on_sizes(model, path, sizes, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    record_steps(
        dualform.Recorder(model, optimizer, path, **options),
        optimizer,
        sizes,
        lambda size: model(torch.randn(B, 2, size, size)).square().sum(),
        sample=np.arange(B),
    )


@pytest.mark.parametrize("options", [{}, {"values": False}], ids=["", "no values"])
def test_feature_maps_of_another_size_part(tmp_path, options):
    with pytest.warns(RuntimeWarning, match="The slots of that call are not recorded") as warned:
        train_on_sizes(Network(), tmp_path / "m", (7, 7, 9), **options)
    layers = sorted(str(warning.message).split("'")[1] for warning in warned)
    assert layers == ["first", "second"]
    with dualform.open(tmp_path / "m") as memory:
        found = {layer.name: layer.status for layer in memory.info().layers}
        names = {name: status.name for name, status in found.items()}
        if options:
            assert names == dict.fromkeys(found, "scores only")
        else:
            assert names == {"first": "approximate", "second": "approximate", "head": "exact"}
        assert "feature maps of [2, 9, 9]" in found["first"].reason
        assert "feature maps" not in found["head"].reason


class Twice(nn.Module):
    """One convolution on maps of two sizes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3)

    def forward(self, x):
        return self.first(x).mean((2, 3)) + self.first(x[:, :, ::2, ::2]).mean((2, 3))


def test_two_sizes_in_the_first_step_are_refused(tmp_path):
    with pytest.raises(RecordingError, match=r"^layer 'first' took feature maps of \[2, 9, 9\] to 5 at step 0"):
        train_on_sizes(Twice(), tmp_path / "m", (9,))
    assert not (tmp_path / "m").exists()


class TimeFirst(nn.Module):
    """Patches become tokens with time first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.tokens, self.head = nn.Conv2d(2, 5, 3), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        self.seen = self.patches(x).flatten(2).permute(2, 0, 1)
        return self.head(torch.tanh(self.tokens(self.seen)).mean(0))


def train_time_first(model, path, **said):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    y = torch.tensor([0, 1, 2, 2])
    with (
        dualform.Recorder(model, optimizer, path, spaces={"patches": "token"}) as recorder,
        recorder.step(label=y, **said),
    ):
        cross_entropy(model(torch.randn(4, 2, 4, 4)), y).backward()
        optimizer.step()


@pytest.mark.parametrize("said", [1, {"token": 1}], ids=str)
def test_the_batch_axis_of_tokens_beside_patches_is_heard(tmp_path, said):
    model = TimeFirst()
    train_time_first(model, tmp_path / "m", batch_dim=said)
    with dualform.open(tmp_path / "m") as memory:
        keys = model.seen.detach().transpose(0, 1).flatten(0, 1).numpy()
        np.testing.assert_array_equal(memory.keys("tokens"), keys)
        assert_exact(memory, ["patches", "tokens", "head"])


def test_a_square_batch_of_tokens_beside_patches_is_refused(tmp_path):
    with pytest.raises(RecordingError, match=r"^the batch axis of \[4, 4\] cannot be told: it is square\."):
        train_time_first(TimeFirst(), tmp_path / "m")


def test_a_mask_of_tokens_does_not_leave_out_patches(tmp_path):
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mask = torch.ones(B, 25, dtype=torch.bool)
    mask[0, 0] = False
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")

    def step():
        record_steps(recorder, optimizer, 1, lambda _: model(torch.randn(B, 2, 7, 7)).square().sum(), mask=mask)

    with pytest.raises(BadInput, match=r"^mask cannot leave out places of space 'patch'"):
        step()


def test_beside_a_matrix_that_only_the_first_step_shows(tmp_path):
    class Own(Network):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(2, 2))

        def forward(self, x):
            return super().forward((x.movedim(1, 3) @ self.matrix).movedim(3, 1))

    train(Own(), tmp_path / "m", spaces={"matrix": "pixel"})
    with dualform.open(tmp_path / "m") as memory:
        assert {"matrix", "first", "second"} <= {layer.name for layer in memory.info().layers}
        assert all(one.exact for one in memory.verify().values())


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
def test_keys_and_values_of_a_transposed_one_make_the_gradient(made):
    layer, x = made
    tap, output = ModuleTap.kind_of(layer)("up", layer), layer(x)
    error = torch.randn_like(output)
    output.backward(error)
    key = tap.call_of((x,), {}, output).key
    values = tap.error_of(key, (), (error,))
    assert values.shape == (*key.shape[:-1], tap.d_out)
    summed = key.flatten(0, -2).T @ values.flatten(0, -2)
    torch.testing.assert_close(summed, layer.weight.grad.flatten(1), rtol=1e-12, atol=1e-12)


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
    model = nn.Sequential(nn.Conv2d(2, 5, 2), nn.ConvTranspose2d(5, 5, 3, groups=5))
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert recorder.skipped == {"1": "it is a transposed convolution in 5 groups"}
