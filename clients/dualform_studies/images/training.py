"""The paper's training recipe, recorded or not.

The text of the paper says "vanilla SGD"; its published code, which reaches the accuracies that the text reports, uses
momentum 0.9, learning rate 3e-3 and global gradient clipping at 1.0. That code is followed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.errors import BadInput
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.stream import Batch, batch_rows, batches
from dualform_studies.progress import Progress

if TYPE_CHECKING:
    from dualform import Recorder


@dataclass(frozen=True)
class Recipe:
    hidden: tuple[int, ...] = (800, 800)
    """Widths of the hidden layers."""
    lr: float = 3e-3
    momentum: float = 0.9
    clip: float = 1.0
    """Greatest norm of the gradient of all parameters together."""
    batch: int = 128
    """Images a step."""
    steps: int = 3000
    """Updates on each dataset."""

    def widths(self, dataset: Dataset) -> tuple[int, ...]:
        """Width of the input, of each hidden layer and of the output."""
        return (dataset.side**2, *self.hidden, len(dataset.label_names))

    def with_steps(self, steps: int | None) -> Recipe:
        """The same recipe with so many updates on each dataset, unchanged for None; BadInput for fewer than 1."""
        if steps is None:
            return self
        if steps < 1:
            raise BadInput(f"steps is {steps}.", hint="Train for at least 1 step on each dataset.", field="steps")
        return replace(self, steps=steps)

    def in_words(self) -> str:
        clipping = f"gradients clipped to norm {self.clip:g}" if math.isfinite(self.clip) else "no clipping"
        return (
            f"SGD with momentum {self.momentum:g}, learning rate {self.lr:g}, {clipping}, {self.batch} images a batch, "
            f"hidden layers of {' and '.join(map(str, self.hidden))}"
        )

    def optimizer(self, network: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(network.parameters(), lr=self.lr, momentum=self.momentum)


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    clip: float,
    *,
    recorder: Recorder | None = None,
    tell: Callable[[int], None] | None = None,
) -> None:
    """Take one update a batch; `clip` bounds the norm of each gradient, `tell` hears how many are done."""
    parameters = list(network.parameters())
    network.train()
    for done, batch in enumerate(batches, start=1):
        images, labels = torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels)
        with _recording(recorder, batch.dataset, labels, torch.from_numpy(batch.rows)):
            loss = cross_entropy(network(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
        if tell is not None:
            tell(done)


def train_part(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset,
    recipe: Recipe,
    *,
    seed: int,
    part: int,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
) -> None:
    """Take `recipe.steps` updates on one dataset; the optimizer goes on from the part before, momentum included."""
    stream = batches(dataset, batch_rows(len(dataset.train), recipe, seed, part))

    def tell(done: int) -> None:
        if progress is not None:
            progress(f"training on {dataset.name}", done, recipe.steps)

    train(network, optimizer, stream, recipe.clip, recorder=recorder, tell=tell)


def _recording(
    recorder: Recorder | None, dataset: str | Sequence[str], labels: torch.Tensor, rows: torch.Tensor
) -> AbstractContextManager[object]:
    if recorder is None:
        return nullcontext()
    step: AbstractContextManager[object] = recorder.step(dataset=dataset, label=labels, sample=rows)
    return step
