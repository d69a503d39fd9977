"""Small networks whose gradients are asked for, recorded, and what autograd makes of each of their examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import dualform
from tests.trainings import learn

CLASSES, ROWS, STEPS, TESTS = 3, 4, 5, 3


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, groups=2), nn.Linear(6, CLASSES, bias=False)

    def forward(self, images):
        return self.head(self.conv(images).relu().mean((2, 3)))


class Words(nn.Module):
    """A table, a recurrent layer and a head whose weight is the table's."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.words, self.inner, self.head = (
            nn.Embedding(CLASSES, 4),
            kind(4, 4, batch_first=True),
            nn.Linear(4, CLASSES),
        )
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.inner(self.words(words))[0]).mean(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES)), lambda n: torch.randn(n, 5)),
    "images": (Images, lambda n: torch.randn(n, 4, 5, 5)),
    "words": (Words, lambda n: torch.randint(0, CLASSES, (n, 6))),
    "gated words": (lambda: Words(nn.GRU), lambda n: torch.randint(0, CLASSES, (n, 6))),
    "attention": (Attention, lambda n: torch.randn(n, 3, 4)),
}


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels, reduction="none")


class Case:
    """A network recorded for some steps, and what autograd makes of each sample's loss at the weights of its step."""

    def __init__(self, name, path):
        torch.manual_seed(0)
        build, draw = NETWORKS[name]
        self.model = build()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3, momentum=0.5)
        self.gradients = []
        with dualform.Recorder(self.model, optimizer, path, quiet=True) as recorder:
            for step in range(STEPS):
                inputs, labels = draw(ROWS), torch.randint(0, CLASSES, (ROWS,))
                self.gradients += [self.gradient_of(inputs[i : i + 1], labels[i : i + 1]) for i in range(ROWS)]
                with recorder.step(label=labels, sample=torch.arange(ROWS) + ROWS * step):
                    learn(optimizer, loss(self.model(inputs), labels).sum())
        self.tests = draw(TESTS), torch.randint(0, CLASSES, (TESTS,))
        self.memory = dualform.open(path)
        self.asked = self.memory.gradients(self.model, *self.tests, loss)

    def gradient_of(self, inputs, labels):
        """By parameter, float64: of one sample's loss, at the weights as they are."""
        double = {name: own.detach().double().requires_grad_() for name, own in self.model.named_parameters()}
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        found = torch.func.functional_call(self.model, double, (inputs,))
        return dict(zip(double, torch.autograd.grad(loss(found, labels).sum(), list(double.values())), strict=True))

    def dot_products(self, names=None):
        """float64[tests, samples]: of all parameters, or of some."""
        tests = [self.gradient_of(self.tests[0][i : i + 1], self.tests[1][i : i + 1]) for i in range(TESTS)]
        return np.array(
            [
                [sum(float((one[name] * other[name]).sum()) for name in names or one) for other in self.gradients]
                for one in tests
            ]
        )
