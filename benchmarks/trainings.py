"""Trainings that are run with the recorder and without, until their records are durable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import torch
from torch import nn

from benchmarks import networks
from dualform import Recorder
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.training.network import build_network
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.updates import train_part

Kind: TypeAlias = Literal["unrecorded", "values", "keys"]
"""Without the recorder; with keys and values; with keys alone."""
GPT_STEPS, TOY_STEPS, PERCEPTRON_STEPS, CHECKPOINTED_STEPS = 60, 150, 800, 40
"""So many that opening and closing a record is no large part of the training."""


class Run(Protocol):
    def __call__(self, memory: Path | None, values: bool, steps: int) -> None:
        """Train so many steps, recorded into `memory` where there is one, until the record is durable."""


@dataclass(frozen=True)
class Training:
    steps: int
    kinds: tuple[Kind, ...]
    run: Run


def trainings(data: Path | None, steps: int, share: float = 1.0) -> Mapping[str, Training]:
    """Those of the section on recording, by name.

    `data` has MNIST and Fashion-MNIST; without it the study's training is left out, which takes `steps` updates on
    each of them. Of the others' steps a `share` is taken.
    """
    found: dict[str, Training] = {}
    if data is not None:
        pair = load_dataset("mnist", data), load_dataset("fashion-mnist", data)
        found["study"] = Training(2 * steps, ("unrecorded", "values", "keys"), partial(_study, pair))
    both: tuple[Kind, ...] = ("unrecorded", "values")
    found["gpt"] = Training(round(share * GPT_STEPS), both, _gpt)
    found["toy"] = Training(round(share * TOY_STEPS), both, _toy)
    found["mlp"] = Training(round(share * PERCEPTRON_STEPS), both, _perceptron)
    return found


def checkpointed() -> Training:
    """That of the section on checkpointing."""
    return Training(CHECKPOINTED_STEPS, ("unrecorded", "values"), _checkpointed)


def _study(pair: tuple[Dataset, Dataset], memory: Path | None, values: bool, steps: int) -> None:
    """The continual study's training: half of the steps on each dataset."""
    recipe = Recipe().with_steps(steps // 2)
    network = build_network(recipe.widths(pair[0]), 0)
    optimizer = recipe.optimizer(network)
    recorder = None if memory is None else Recorder(network, optimizer, memory, values=values, quiet=True)
    with recorder or nullcontext():
        for part, dataset in enumerate(pair):
            train_part(network, optimizer, dataset, recipe, seed=0, part=part, recorder=recorder)


def _gpt(memory: Path | None, values: bool, steps: int) -> None:
    """Four causal blocks of width 256, on 512 tokens a step."""
    _of_texts(networks.Transformer(256, 4), 8, steps, memory)


def _toy(memory: Path | None, values: bool, steps: int) -> None:
    """Two causal blocks of width 32, on 512 tokens a step."""
    _of_texts(networks.Transformer(32, 2), 8, steps, memory)


def _checkpointed(memory: Path | None, values: bool, steps: int) -> None:
    """Two causal blocks of width 256, on 1,024 tokens a step, whose activations are made again in backward."""
    _of_texts(networks.Transformer(checkpointed=True), 16, steps, memory)


def _perceptron(memory: Path | None, values: bool, steps: int) -> None:
    networks.train(networks.small_perceptron(), networks.digits, steps, memory)


def _of_texts(model: nn.Module, count: int, steps: int, memory: Path | None) -> None:
    def batches(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return networks.texts(generator, count)

    networks.train(model, batches, steps, memory)


def in_turns(found: Mapping[str, Training], backwards: bool) -> Iterator[tuple[str, Training, Kind]]:
    """Every training in each of its kinds; of each, the kinds in the opposite order where `backwards`."""
    for name, training in found.items():
        for kind in training.kinds[::-1] if backwards else training.kinds:
            yield name, training, kind
