"""A network under two optimizers, recorded, and how far its record is from the live weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.query.engine import Engine
from dualform.query.weights.trajectory import build
from dualform.query.where import mask
from dualform.record.recorder import Recorder

ROWS = 4


CLOSE = 1e-5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def sgd_and_adamw(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    """The middle layer's weight is SGD's, its bias AdamW's."""
    weights = [model[0].weight, model[0].bias, model[2].weight]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.02}]
    sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)
    return [sgd, torch.optim.AdamW([model[2].bias, *model[4].parameters()], lr=0.01)]


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(model.state_dict())


def distances(memory, history) -> dict[tuple[int, str], float]:
    """By step and parameter: how far the record alone is from the live weights, relative to the distance they moved."""
    view, found = memory._view, {}
    for step, live in enumerate(history):
        for layer in view.snapshot.layers.values():
            chosen = {name: mask.selection(view, own, None) for name, own in view.snapshot.layers.items()}
            for name, own in build(view, layer, chosen[layer.name], step, lambda: None, chosen).items():
                now = live[name].double().numpy()
                way = np.linalg.norm(history[-1][name].double().numpy() - history[0][name].double().numpy())
                found[step, name] = float(np.linalg.norm(own - now)) / max(float(way), 1e-3)
    return found


def recorded(path, train, model=None, make=sgd_and_adamw, **options):
    """`train(model, optimizers, recorder, told)`, which tells after each step."""
    model = model or network()
    optimizers, history = make(model), [state(model)]
    with Recorder(model, optimizers, path, **options) as recorder:
        train(model, optimizers, recorder, lambda: history.append(state(model)))
    memory = dualform.open(path)
    _OPENED.append(memory)
    return memory, history


_OPENED = list[Engine]()


@pytest.fixture(autouse=True, scope="module")
def closed():
    yield
    for memory in _OPENED:
        memory.close()


def together(model, optimizers, recorder, told, steps=6):
    for number in range(steps):
        x, y = batch(number)
        with recorder.step(label=y):
            for optimizer in optimizers:
                optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for optimizer in optimizers:
                optimizer.step()
        told()
