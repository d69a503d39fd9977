"""The network, the training and the sizes of the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn


@dataclass(frozen=True)
class Recipe:
    """Those of the MNIST benchmark of dattri (Deng et al., 2024), but for the epochs, of which it has 50."""

    hidden: tuple[int, ...] = (128, 64)
    """Widths of the hidden layers."""
    dropout: float = 0.1
    lr: float = 0.01
    momentum: float = 0.9
    batch: int = 64
    """Images a step; the last batch of an epoch has what is left."""
    epochs: int = 15
    trained: int = 5000
    """Training images: the first of the file."""
    tested: int = 500
    """Test images that are attributed: the first of the file."""

    def widths(self, inputs: int, classes: int) -> tuple[int, ...]:
        """Width of the input, of each hidden layer and of the output."""
        return (inputs, *self.hidden, classes)

    def build(self, inputs: int, classes: int, seed: int) -> nn.Sequential:
        """A fresh network in PyTorch's default initialisation, drawn from the seed alone."""
        widths = self.widths(inputs, classes)
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for d_in, d_out in pairwise(widths):
                layers += [nn.Linear(d_in, d_out), nn.ReLU(), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers[:-2])

    def optimizer(self, parameters: Iterator[nn.Parameter] | list[torch.Tensor]) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)

    def in_words(self) -> str:
        return (
            f"SGD with momentum {self.momentum:g}, learning rate {self.lr:g}, {self.batch} images a batch, "
            f"{self.epochs} epochs, hidden layers of {' and '.join(map(str, self.hidden))} with relu and dropout "
            f"{self.dropout:g}"
        )


def seed_of_step(seed: int, step: int) -> int:
    """What the dropout of one step is drawn from, so that every training of this seed has the same."""
    return (seed + 1) * 1_000_003 + step
