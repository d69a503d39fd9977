"""A network of the coverage table: how to build it, what it is fed, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
"""Inputs and labels by name, as the network's forward takes them."""

BATCH, SAMPLES, CLASSES, WORDS, LENGTH = 8, 40, 4, 64, 24


def loss_of_output(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a network that computes it, as those of Transformers do."""
    loss: Tensor = model(**batch).loss
    return loss


@dataclass(frozen=True)
class Network:
    """One network and its data. `data` are all samples, [SAMPLES, …] each."""

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor] = loss_of_output
    options: Mapping[str, object] | None = None
    """Arguments of the recorder."""


def batches(network: Network, steps: int) -> Iterator[tuple[Batch, dict[str, object]]]:
    """Batches drawn without replacement from seed 1, and the columns that the recorder is told of each."""
    data, generator = network.data(), torch.Generator().manual_seed(1)
    for step in range(steps):
        index = torch.randperm(SAMPLES, generator=generator)[:BATCH]
        columns = {"dataset": "a" if step < steps // 2 else "b", "sample": index}
        yield {name: values[index] for name, values in data.items()}, columns


def images(channels: int = 3, size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    pixels = torch.randn(SAMPLES, channels, size, size, generator=generator) + labels[:, None, None, None] / 4
    return {"pixel_values": pixels, "labels": labels}


def texts() -> Batch:
    """Tokens [SAMPLES, LENGTH] to be continued."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, WORDS, (SAMPLES, LENGTH), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def labelled_texts() -> Batch:
    """Tokens [SAMPLES, LENGTH] to be told apart."""
    return {"input_ids": texts()["input_ids"], "labels": images()["labels"]}


def translations() -> Batch:
    tokens = texts()["input_ids"]
    return {"input_ids": tokens, "labels": tokens.flip(1)[:, : LENGTH // 2].contiguous()}
