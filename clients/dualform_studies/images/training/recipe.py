"""The paper's training recipe.

The text of the paper says "vanilla SGD"; its published code, which reaches the accuracies that the text reports, uses
momentum 0.9, learning rate 3e-3 and global gradient clipping at 1.0. Those are the defaults here; a study that departs
from them says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from dualform.errors import BadInput
from dualform_studies.images.data.datasets import Dataset


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
    """Updates: on each dataset where they are learned one after another, of both where they are mixed."""

    def widths(self, dataset: Dataset) -> tuple[int, ...]:
        """Width of the input, of each hidden layer and of the output."""
        return (dataset.train.pixels.shape[1], *self.hidden, len(dataset.label_names))

    def with_steps(self, steps: int | None) -> Recipe:
        """The same recipe with so many updates, unchanged for None; BadInput for fewer than 1."""
        if steps is None:
            return self
        if steps < 1:
            raise BadInput(f"steps must be at least 1, not {steps}.", hint="For example --steps 1000.", field="steps")
        return replace(self, steps=steps)

    def in_words(self) -> str:
        clipping = f"gradients clipped to norm {self.clip:g}" if math.isfinite(self.clip) else "no clipping"
        return (
            f"SGD with momentum {self.momentum:g}, learning rate {self.lr:g}, {clipping}, {self.batch} images a batch, "
            f"hidden layers of {' and '.join(map(str, self.hidden))}"
        )

    def optimizer(self, network: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(network.parameters(), lr=self.lr, momentum=self.momentum)


def named_recipe(*, variant: bool) -> str:
    """What a page calls a study's own recipe, or one that departs from it and has no figures of the paper beside it."""
    return "a variant of the recipe of the paper's code" if variant else "the recipe of the paper's code"
