"""The time of an adjoint, and how well it predicts retrainings: python -m benchmarks.adjoint

A perceptron 784-128-64-10 on the first MNIST images, trained as each recipe says, twelve test images as queries; times
in trainings without a recorder, on one thread, side by side. LDS: the mean over queries of Spearman's correlation of
predicted and real changes of the loss over 30 retrainings without a random 1 % of the samples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from benchmarks.attribution_ways import images as first_images, loss
from benchmarks.harness import race
from benchmarks.recording import train

QUERIES = 12


class Recipe(NamedTuple):
    activation: type[nn.Module]
    images: int
    batch: int
    rate: float
    epochs: int = 15

    @property
    def name(self) -> str:
        return f"{self.activation.__name__}, batch {self.batch} of {self.images:,}, lr {self.rate}"


RECIPES = (Recipe(nn.Tanh, 2000, 500, 0.1), Recipe(nn.GELU, 2000, 250, 0.05), Recipe(nn.ReLU, 5000, 64, 0.01))


def trained(recipe: Recipe, images: Tensor, labels: Tensor, path: Path | None) -> nn.Module:
    """By SGD with momentum; recorded where there is a path."""
    torch.manual_seed(0)
    widths, layers = (784, 128, 64), list[nn.Module]()
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), recipe.activation()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=0.9)

    recorder = None if path is None else dualform.Recorder(model, optimizer, path, quiet=True)
    parts = [part for _ in range(recipe.epochs) for part in torch.split(torch.randperm(len(images)), recipe.batch)]
    batches = (
        (images[part], labels[part], {"dataset": "mnist", "label": labels[part], "sample": part}) for part in parts
    )
    train(model, optimizer, batches, recorder)
    return model


def measured(recipe: Recipe) -> str:
    (images, labels), held_out = first_images(None, recipe.images)
    tests, their_labels = held_out.of(slice(QUERIES))

    def batches(step: int, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return images[samples], labels[samples]

    def asking(n: int) -> Callable[[], object]:
        return lambda: dualform.adjoint(path, model, (tests[:n], their_labels[:n]), loss, batches)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        model = trained(recipe, images, labels, path)
        ran = race(
            {"plain": lambda: trained(recipe, images, labels, None), **{str(n): asking(n) for n in (1, QUERIES)}},
            3,
            600.0,
        )
        plain, one, all_of_them = (own.best for own in ran.values() if own.best is not None)
        found = dualform.adjoint(path, model, (tests, their_labels), loss, batches)
        retrained = dualform.retrain(path, model, (tests, their_labels), loss, batches, random=30, share=0.01)
        agreement = found.agreement(retrained)
    interval = f"{agreement.correlation:.2f} \\[{agreement.low:.2f}, {agreement.high:.2f}\\]"
    return f"| {recipe.name} | {interval} | {one / plain:.1f} | {(all_of_them - one) / plain / (QUERIES - 1):.2f} |"


def main() -> None:
    torch.set_num_threads(1)
    print("| recipe | LDS, 1 % left out | one query, in trainings | each further query |")
    print("| --- | --- | ---: | ---: |")
    for recipe in RECIPES:
        print(measured(recipe), flush=True)


if __name__ == "__main__":
    main()
