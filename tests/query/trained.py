"""Small networks trained and recorded for real, with what was done to their weights beside the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.query.engine import Engine
from dualform.query.weights.trajectory import build, every_slot
from tests.record.listed import batches, small_net

STEPS, WHEN = 40, 20
"""Steps of a training, and the step after which something happens to it."""


@dataclass
class Trained:
    engine: Engine
    model: nn.Module
    history: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """The state dict once so many steps were taken."""

    def measured(self, layer: str, at_step: int = STEPS) -> float:
        """How far the record alone is from the live weights, relative to how far they moved: by a pass in NumPy."""
        view = self.engine._view
        names = [parameter.name for parameter in view.snapshot.layer(layer).parameters]
        own = build(view, view.snapshot.layer(layer), every_slot(view), at_step, lambda: None)
        now, first = self.history[at_step], self.history[0]
        error = np.sqrt(sum(np.square(now[n].double().numpy() - own[n]).sum() for n in names))
        way = np.sqrt(sum(np.square((now[n] - first[n]).double().numpy()).sum() for n in names))
        return float(error / way)


def train(
    path,
    *,
    model: nn.Module | None = None,
    between: Callable[[int, nn.Module, torch.optim.Optimizer], torch.optim.Optimizer | None] | None = None,
    at_end: Callable[[nn.Module], None] | None = None,
    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None,
    update: Callable[[nn.Module, torch.optim.Optimizer, Callable[[], None]], None] | None = None,
    steps: int = STEPS,
    **settings,
) -> Trained:
    """`between` runs after each step, and may give another optimizer; `update` in place of backward and update."""
    model = model or small_net()
    optimizer = torch.optim.SGD(model.parameters(), **({"lr": 0.1, "momentum": 0.9} | settings))
    history = [_copy(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(steps)):

            def backward(x=x, y=y, optimizer=optimizer):
                optimizer.zero_grad()
                cross_entropy(forward(model, x) if forward else model(x), y).backward()

            with recorder.step(label=y, sample=np.arange(8 * number, 8 * number + 8)):
                if update is None:
                    backward()
                    optimizer.step()
                else:
                    update(model, optimizer, backward)
            if between is not None:
                optimizer = between(number, model, optimizer) or optimizer
            history.append(_copy(model))
        if at_end is not None:
            at_end(model)
            history[-1] = _copy(model)
    return Trained(dualform.open(path), model, history)


def _copy(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
