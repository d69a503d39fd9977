"""Training as the recipe says, recorded or not. Shapes: b images of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import Batch, batch_rows, batches
from dualform_studies.progress import Progress

if TYPE_CHECKING:
    from dualform import Recorder


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
    stream = batches(dataset, batch_rows(dataset.split.trained, recipe, seed, part))

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
