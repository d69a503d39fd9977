"""One network, trained as people do: clipped, in parts, frozen half way, rolled back, by other optimizers."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.rules.own import Unruled
from tests.trainings import learn

from .network import STEPS, Batch, Loss, Network
from .samples import classify, labelled, mlp


def clipped(model: nn.Module, optimizer: Optimizer, batch: Batch, loss: Loss) -> None:
    learn(optimizer, loss(model, batch.inputs), lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


Network("clipped", mlp, labelled, classify, train=clipped)


def in_micro_batches(model: nn.Module, optimizer: Optimizer, batch: Batch, loss: Loss) -> None:
    optimizer.zero_grad()
    x, y = batch.inputs
    for part in range(3):
        (loss(model, (x[part::3], y[part::3])) / 3).backward()
    optimizer.step()


Network(
    "micro-batches",
    mlp,
    lambda: (Batch(b.inputs, {"dataset": "a"}) for b in labelled()),
    classify,
    train=in_micro_batches,
)
Network(
    "accumulation",
    mlp,
    lambda: (Batch(b.inputs, b.columns, n % 3 == 2) for n, b in enumerate(chain(labelled(), labelled()))),
    classify,
)


def adversarial(model: nn.Module, optimizer: Optimizer, batch: Batch, loss: Loss) -> None:
    """Gradients of a batch and of the same batch moved against it."""
    optimizer.zero_grad()
    x, y = batch.inputs
    x = x.clone().requires_grad_()
    loss(model, (x, y)).backward()
    assert x.grad is not None
    loss(model, ((x + 0.1 * x.grad.sign()).detach(), y)).backward()
    optimizer.step()


Network("adversarial", mlp, labelled, classify, train=adversarial)


def under_autocast(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return classify(model, inputs)


Network("bfloat16-autocast", mlp, labelled, under_autocast, statuses=dict.fromkeys(("0", "2"), "exact to bfloat16"))


def freeze_half_way(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    if number == STEPS // 2:
        model[0].requires_grad_(False)
        for parameter in model[0].parameters():
            parameter.grad = None


Network("frozen-late", mlp, labelled, classify, before=freeze_half_way)


def roll_back(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    if number == 2:
        model.best = {name: value.clone() for name, value in model.state_dict().items()}
    if number == STEPS - 1:
        model.load_state_dict(model.__dict__.pop("best"))


Network("rolled-back", mlp, labelled, classify, before=roll_back, statuses=dict.fromkeys(("0", "2"), "approximate"))
Network("adam", mlp, labelled, classify, lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1))
Network(
    "unruled",
    mlp,
    labelled,
    classify,
    lambda m: Unruled(m.parameters(), lr=0.05),
    statuses=dict.fromkeys(("0", "2"), "scores only"),
)
