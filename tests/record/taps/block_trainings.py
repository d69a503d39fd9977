"""Trainings of networks with blocks of parameters, and what is asked of their memories."""

from types import FunctionType

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.taps import Parameter
from tests.record.product_tap import Product
from tests.trainings import learn

STEPS, B, L, D, CLASSES = 8, 6, 5, 8, 3


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)


def train(model, path, taps=(), steps=STEPS, momentum_before=0, make=sgd, **options):
    """Under momentum and weight decay; `momentum_before`: updates before the recording begins."""
    generator = torch.Generator().manual_seed(1)
    optimizer = make(model)

    def update():
        y = torch.randint(0, CLASSES, (B,), generator=generator)
        learn(optimizer, cross_entropy(model(torch.randn(B, L, D, generator=generator)), y))

    for _ in range(momentum_before):
        update()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    with dualform.Recorder(model, optimizer, path, taps=taps, **options) as recorder:
        for step in range(steps):
            with recorder.step(dataset="a" if step < steps // 2 else "b", sample=np.arange(B)):
                update()
    return initial


def statuses(memory):
    return {layer.name: layer.status for layer in memory.info().layers}


def assert_exact(memory, layers):
    found, reconstructions = statuses(memory), memory.verify()
    assert list(found) == list(layers)
    for name, status in found.items():
        assert status.name == "exact", (name, status.reason)
        assert reconstructions[name].reconstruction_error <= 2e-5, name


def assert_live(memory, model):
    """The rebuilt network is the live one."""
    live, rebuilt = model.state_dict(), memory.weights()
    assert set(rebuilt) == set(live)
    for name, value in live.items():
        assert rebuilt[name].shape == value.shape
        np.testing.assert_allclose(rebuilt[name].numpy(), value.numpy(), atol=2e-6, err_msg=name)


# A transposed weight, as Hugging Face's Conv1D has one.


class Conv1D(nn.Module):
    """y = x W + b, with W [d_in, d_out]: what the class of this name is in transformers, which need not be here."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d_in, d_out) * 0.3), nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


# Its forward is that of the module that the class is of.
Conv1D.forward = FunctionType(Conv1D.forward.__code__, {**globals(), "__name__": Conv1D.__module__})


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = Conv1D(D, 12), Conv1D(12, D), nn.Linear(D, CLASSES)

    def forward(self, x):
        return self.head((x + self.down(torch.tanh(self.up(x)))).mean(1))


# q, k and v of one packed parameter.


class Attention(nn.Module):
    def __init__(self, recorded):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * D, D) * 0.3)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * D) * 0.1)
        self.products = {part: self.product(part, (D * i, D * i + D)) for i, part in enumerate("qkv")}
        self.taps = [self.products[part] for part in recorded]

    def product(self, part, rows):
        blocks = {
            Parameter("attend.in_proj_weight", 0, D, rows=rows): self.in_proj_weight,
            Parameter("attend.in_proj_bias", D, D + 1, rows=rows): self.in_proj_bias,
        }
        return Product(part, D, D, blocks)

    def forward(self, x):
        parts = zip("qkv", self.in_proj_weight.split(D), self.in_proj_bias.split(D), strict=True)
        q, k, v = (self.products[part](x, weight, bias) for part, weight, bias in parts)
        return torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v


class Attending(nn.Module):
    def __init__(self, recorded="qkv"):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.attend, self.head = nn.Linear(D, D), Attention(recorded), nn.Linear(D, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.attend(x)).mean(1))


def brought(memory, layer, dataset):
    """float64[d_out, d_in]: what the slots of a dataset brought to a layer's weight, in plain NumPy."""
    ids = np.arange(len(memory.keys(layer)))
    stays = np.asarray(memory.slots(ids, "token")["dataset"]) == dataset
    keys, values = memory.keys(layer)[stays].astype(np.float64), memory.values(layer)[stays].astype(np.float64)
    return (memory.coefficients(layer, ids)[stays, None] * values).T @ keys


def parted(memory, name):
    """float64 arrays of a parameter: what no slot brought to it, and what it is by that and the slots of dataset a."""
    masks = (None, "dataset = 'a'", "dataset = 'b'")
    whole, left, right = (memory.weights(where)[name].double().numpy() for where in masks)
    return left + right - whole, left


# Columns of a transposed weight: q, k and v of a packed Conv1D.


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c_attn, self.head = nn.Parameter(torch.randn(D, 3 * D) * 0.3), nn.Linear(D, CLASSES)
        self.taps = []
        for i, part in enumerate("qkv"):
            block = Parameter("c_attn", 0, D, transposed=True, columns=(D * i, D * i + D))
            self.taps.append(Product(part, D, D, {block: self.c_attn}))

    def forward(self, x):
        q, k, v = (tap(x, own.T) for tap, own in zip(self.taps, self.c_attn.split(D, 1), strict=True))
        return self.head((torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v).mean(1))
