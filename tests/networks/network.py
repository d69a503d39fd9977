"""What a network of the suite is: how to build, feed and train it, and what its record should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NETWORKS: dict[str, Network] = {}
STEPS = 8

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Batch:
    inputs: Any
    """Whatever the network's loss takes."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What `recorder.step` is told."""
    update: bool = True
    """False where the gradients wait for a later step's update."""


def plain_sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Network:
    """One kind of network, and how it is trained."""

    name: str
    build: Callable[[], nn.Module]
    batches: Callable[[], Iterator[Batch]]
    loss: Loss
    optimizer: Callable[[nn.Module], Optimizer] = momentum
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the recorder."""
    train: Callable[[nn.Module, Optimizer, Batch, Loss], None] | None = None
    """One step, where it is not zero_grad, loss, backward, step."""
    before: Callable[[nn.Module, Optimizer, int], None] | None = None
    """What happens before a step of that number."""
    statuses: Mapping[str, str] = field(default_factory=dict)
    """Status by layer, of those that are not exact."""
    layers: tuple[str, ...] | None = None
    """The layers that are recorded; None for all of the suite's kinds."""
    time_first: frozenset[str] = frozenset()
    """Layers whose keys lie [L, B, d]."""

    def __post_init__(self) -> None:
        NETWORKS[self.name] = self


def train(network: Network, recorder: Any = None, on_step: Callable[[int], None] | None = None) -> Any:
    """Train a network from seed 0; returns model and optimizer. `recorder` makes a recorder of both, or is None."""
    torch.manual_seed(0)
    model = network.build()
    optimizer = network.optimizer(model)
    made = recorder(model, optimizer) if recorder else None
    with made or nullcontext():
        for number, batch in enumerate(network.batches()):
            if network.before:
                network.before(model, optimizer, number)
            if on_step:
                on_step(number)
            with made.step(**batch.columns) if made else nullcontext():
                (network.train or _train)(model, optimizer, batch, network.loss)
    return model


def _train(model: nn.Module, optimizer: Optimizer, batch: Batch, loss: Loss) -> None:
    loss(model, batch.inputs).backward()
    if batch.update:
        optimizer.step()
        optimizer.zero_grad()
