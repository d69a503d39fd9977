"""Networks that multiply by matrices of their own, and a step of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.trainings import learn

from .listed import Opened

B, D = 5, 4


def matrix(*shape):
    return nn.Parameter(torch.randn(*shape) / 2)


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.05), path, **options)


def one_step(opened, model, *inputs, **said):
    with opened.recorder.step(**said):
        learn(opened.optimizer, model(*inputs).square().sum())


class Tied(nn.Module):
    """A matrix that is multiplied here, the other way round, and by a linear layer inside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.inner = matrix(D, D), nn.Linear(D, D)
        self.inner.weight = self.weight

    def forward(self, x):
        return (torch.tanh(self.inner(x)) @ self.weight).tanh() @ self.weight.T


class Checkpointed(nn.Module):
    def __init__(self, inside):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.head, self.inside = matrix(D, D), nn.Linear(D, 1), inside

    def products(self, x):
        return torch.tanh(x @ self.weight) @ self.weight

    def forward(self, x):
        return self.head(checkpoint(self.products, x, use_reentrant=False) if self.inside else self.products(x))


class Turned(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T
