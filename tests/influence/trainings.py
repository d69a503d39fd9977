"""Small trainings whose ledger is made, and all that an oracle needs to make it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrize import register_parametrization

import dualform

ROWS, EXAMPLES, SAMPLES = 8, 5, 24


def losses(output: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(output, labels, reduction="none")


def squares(output: Tensor, labels: Tensor) -> Tensor:
    return (output - nn.functional.one_hot(labels, 4).to(output)).square().sum(1)


def numbers(shape: tuple[int, ...]) -> Callable[[int], Tensor]:
    return lambda seed: torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(seed))


def words(seed: int) -> Tensor:
    return torch.randint(12, (ROWS, 5), generator=torch.Generator().manual_seed(seed))


def labels(seed: int) -> Tensor:
    return torch.randint(4, (ROWS,), generator=torch.Generator().manual_seed(1000 + seed))


def samples(step: int) -> np.ndarray:
    """Each sample comes in every third step."""
    return (np.arange(ROWS) + ROWS * step) % SAMPLES


@dataclass(frozen=True)
class Training:
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor] = losses
    clip: float | None = None
    every: int = 1
    """Steps to an update."""

    def record(self, path: Path, steps: int = 12, before: Callable[[nn.Module, int], None] | None = None) -> nn.Module:
        """`before` is called as each step begins. Returns the trained network, as it was set for training."""
        torch.manual_seed(3)
        model = self.make()
        optimizer = self.optimizer(model)
        with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
            for step in range(steps):
                if before is not None:
                    before(model, step)
                with recorder.step(sample=samples(step), label=labels(step)):
                    if step % self.every == 0:
                        optimizer.zero_grad()
                    self.loss(model(self.inputs(step)), labels(step)).mean().backward()
                    if step % self.every == self.every - 1:
                        if self.clip is not None:
                            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                        optimizer.step()
        return model

    def influence(self, **options) -> dualform.Influence:
        return dualform.Influence("test", self.inputs(99)[:EXAMPLES], labels(99)[:EXAMPLES], self.loss, **options)


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x**3


def computed() -> nn.Module:
    """Its first layer has no values: the weight is computed from another."""
    network = perceptron()
    register_parametrization(network[0], "weight", Cubed())
    return network


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(12, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 8), nn.Linear(8, 4)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.words(x)).mean(1))


class Tied(nn.Module):
    """A table of words that is also the weight of a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False), nn.Linear(12, 4)
        self.layer.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(self.words(x))).mean(1))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 9, 4))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 4))


def sgd(**settings) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), **{"lr": 0.1, **settings})


MOMENTUM = sgd(lr=0.05, momentum=0.8)
KINDS = {
    "linear layers": Training(perceptron, numbers((6,)), MOMENTUM),
    "LSTM and embedding": Training(Recurrent, words, MOMENTUM),
    "convolution in groups": Training(convolution, numbers((4, 3, 3)), MOMENTUM),
    "attention": Training(Attention, words, MOMENTUM),
    "a tied weight": Training(Tied, words, MOMENTUM),
    "batch norm and dropout": Training(normed, numbers((6,)), MOMENTUM),
}
