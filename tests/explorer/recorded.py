"""A small training on images of two datasets, the second of which makes the network forget some of the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import dualform
from tests.trainings import learn

Optimizer: TypeAlias = Callable[..., Any]
"""Of parameters."""
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
SIDE, CLASSES, IMAGES, ROWS, STEPS = 6, 4, 60, 12, 60
NAMES = {"shapes": ["bar", "cross", "dot", "frame"], "noise <b>": ["one", "two", "three", "four"]}


def images_of(dataset: int, seed: int) -> tuple[Tensor, Tensor]:
    """float32[IMAGES, SIDE * SIDE] and their labels: each class a pattern of its dataset, with noise."""
    patterns = torch.randn(CLASSES, SIDE * SIDE, generator=torch.Generator().manual_seed(100 + dataset))
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.arange(IMAGES) % CLASSES
    return patterns[labels] + 0.8 * torch.randn(IMAGES, SIDE * SIDE, generator=drawn), labels


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(SIDE * SIDE, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def preview_set(inputs: Tensor) -> dualform.PreviewSet:
    return dualform.PreviewSet.images(inputs.reshape(-1, SIDE, SIDE))


def record(path: Path, optimizer: Optimizer = SGD, steps: int = STEPS) -> Path:
    """Steps of ROWS samples, the first half of "shapes"; a query set of each dataset; previews of all."""
    model = network()
    moving = optimizer(model.parameters())
    with dualform.Recorder(model, moving, path, label_names=NAMES, quiet=True) as recorder:
        for part, name in enumerate(NAMES):
            inputs, labels = images_of(part, part)
            recorder.previews(name, preview_set(inputs))
            drawn = torch.Generator().manual_seed(part)
            for _ in range(steps // 2):
                index = torch.randint(IMAGES, (ROWS,), generator=drawn)
                with recorder.step(dataset=name, label=labels[index], sample=index, bright=inputs[index].mean(dim=1)):
                    learn(moving, nn.functional.cross_entropy(model(inputs[index]), labels[index]))
        for part, query_set in enumerate(("shapes", "noise")):
            inputs, labels = images_of(part, 10 + part)
            recorder.query_set(query_set, inputs, label=labels, previews=preview_set(inputs))
    return path


class Training:
    """Records into a folder, as many steps of ROWS samples at a time as it is told, with all of it on disk."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.model = network(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs, self.labels = images_of(0, 0)
        self.recorder = dualform.Recorder(self.model, self.optimizer, path, quiet=True)

    def take(self, steps: int, query_set: bool = False) -> None:
        for _ in range(steps):
            with self.recorder.step(dataset="shapes", label=self.labels[:ROWS], sample=torch.arange(ROWS)):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(self.inputs[:ROWS]), self.labels[:ROWS]).backward()
                self.optimizer.step()
        if query_set:
            self.recorder.query_set("test", self.inputs, label=self.labels)
        self.recorder.flush()
