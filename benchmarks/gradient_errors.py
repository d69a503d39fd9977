"""How far dot products of gradients lie from autograd's in float64, by kind of network.

Each network is recorded for a few steps; norms, which are no layer that is recorded, count in neither. The gradients of
all samples at the weights of their step, and of a few examples at the end, are made once more by autograd, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import dualform

_CLASSES, _ROWS, _STEPS, _EXAMPLES = 5, 8, 10, 4


class _Network(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    """Of so many rows."""


class _Words(nn.Module):
    """A table of words, a layer over its rows, and a head."""

    def __init__(self, middle: nn.Module, width: int) -> None:
        super().__init__()
        self.words, self.middle, self.head = nn.Embedding(20, 12), middle, nn.Linear(width, _CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        found = self.middle(self.words(words))
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))  # type: ignore[no-any-return]


def _words(rows: int) -> Tensor:
    return torch.randint(0, 20, (rows, 7))


NETWORKS = {
    "MLP": _Network(
        lambda: nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, _CLASSES)), lambda rows: torch.randn(rows, 16)
    ),
    "Conv2d": _Network(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, _CLASSES)),
        lambda rows: torch.randn(rows, 3, 6, 6),
    ),
    "Embedding": _Network(lambda: _Words(nn.Tanh(), 12), _words),
    "LSTM": _Network(lambda: _Words(nn.LSTM(12, 10, batch_first=True), 10), _words),
    "GRU": _Network(lambda: _Words(nn.GRU(12, 10, batch_first=True), 10), _words),
    "an attention block": _Network(
        lambda: _Words(nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True), 12), _words
    ),
}


def loss(output: Tensor, labels: Tensor) -> Tensor:
    """Of each example."""
    return nn.functional.cross_entropy(output, labels, reduction="none")


def gradient_errors(folder: Path) -> dict[str, float]:
    """By kind of network: the greatest distance from autograd's dot products, over the greatest of these."""
    return {name: _error(network, folder / name.replace(" ", "-")) for name, network in NETWORKS.items()}


def _error(network: _Network, path: Path) -> float:
    torch.manual_seed(0)
    model, samples = network.make(), list[Mapping[str, Tensor]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(_STEPS):
            inputs, labels = network.inputs(_ROWS), torch.randint(0, _CLASSES, (_ROWS,))
            samples += [_gradient(model, inputs[row : row + 1], labels[row : row + 1]) for row in range(_ROWS)]
            with recorder.step(sample=torch.arange(_ROWS) + _ROWS * step):
                optimizer.zero_grad()
                torch.autograd.backward(loss(model(inputs), labels).sum())
                optimizer.step()
    inputs, labels = network.inputs(_EXAMPLES), torch.randint(0, _CLASSES, (_EXAMPLES,))
    with dualform.open(path) as memory:
        given = memory.gradients(model, inputs, labels, loss)
        found = memory.group_sum("*", given, by="sample", score="gradient").sums
    examples = [_gradient(model, inputs[row : row + 1], labels[row : row + 1]) for row in range(_EXAMPLES)]
    norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))
    names = [name for name in examples[0] if not name.startswith(norms)]
    right = np.array([[sum(float((one[n] * other[n]).sum()) for n in names) for other in samples] for one in examples])
    return float(np.abs(found - right).max() / np.abs(right).max())


def _gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """By parameter, float64: of one example's loss, at the weights as they are."""
    given: dict[str, Any] = {name: own.detach().double().requires_grad_() for name, own in model.named_parameters()}
    widened = inputs.double() if inputs.is_floating_point() else inputs
    found = loss(functional_call(model, given, (widened,)), labels).sum()
    return dict(zip(given, torch.autograd.grad(found, list(given.values())), strict=True))
