"""The order within the memory does not matter (paper, remark 3.1): the same pairs recorded in two orders.

Any keys x_t and values e_t can be recorded: linear layers on which the loss is -sum_t (W x_t) . e_t have the output
gradients -e_t, so that plain SGD with a learning rate of 1 adds e_t x_t^T each. Shapes: T pairs, n queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dualform import Recorder
from dualform.query.engine import Engine, open_memory
from dualform_studies.pages.folder import Report

BEST = 10
"""Slots of greatest score that are compared."""

_PAIRS_A_STEP = 128


@dataclass(frozen=True, eq=False)
class Pairs:
    """Keys and values of some slots of every layer."""

    keys: Mapping[str, NDArray[np.float32]]
    """By layer, float32[T, d_in]."""
    values: Mapping[str, NDArray[np.float32]]
    """By layer, float32[T, d_out]: the e_t."""
    labels: NDArray[np.int64]
    """int64[T]."""

    def __len__(self) -> int:
        return len(self.labels)


def pairs_of(memory: Engine, slots: NDArray[np.int64]) -> Pairs:
    """The pairs of some slots, in their order."""
    layers = [layer.name for layer in memory.info().layers]
    keys, values = {}, {}
    for layer in layers:
        keys[layer] = memory.keys(layer, slots)
        errors = memory.values(layer, slots) * memory.coefficients(layer, slots)[:, None]
        values[layer] = errors.astype(np.float32)
    return Pairs(keys, values, np.asarray(memory.slots(slots)["label"], dtype=np.int64))


def record_pairs(pairs: Pairs, order: NDArray[np.int64], folder: Path) -> None:
    """A memory of the pairs in this order; `order` holds each number from 0 to T - 1 once. Its layers begin at 0."""
    model = nn.ModuleDict(
        {layer: nn.Linear(pairs.keys[layer].shape[1], pairs.values[layer].shape[1]) for layer in pairs.keys}
    )
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Recorder(model, optimizer, folder, quiet=True) as recorder:
        for start in range(0, len(order), _PAIRS_A_STEP):
            rows = order[start : start + _PAIRS_A_STEP]
            with recorder.step(dataset="pairs", label=torch.from_numpy(pairs.labels[rows]), sample=rows):
                optimizer.zero_grad()
                torch.autograd.backward([_loss(model[layer], pairs, layer, rows) for layer in pairs.keys])
                optimizer.step()


def _loss(linear: nn.Module, pairs: Pairs, layer: str, rows: NDArray[np.int64]) -> torch.Tensor:
    keys, values = torch.from_numpy(pairs.keys[layer][rows]), torch.from_numpy(pairs.values[layer][rows])
    loss: torch.Tensor = -(linear(keys) * values).sum()
    return loss


def compare_orders(pairs: Pairs, order: NDArray[np.int64], queries: Mapping[str, NDArray[np.float32]]) -> Report:
    """By layer, how far the answers about the pairs in the given order are from those about the pairs as they stand.

    `outputs` and `sums` are the greatest relative difference over the queries, of the layer's outputs and of the signed
    scores summed over each label; `same_best` is the share of queries whose BEST slots are the same pairs, but for
    those that score as much as the last: of them, either order has the ones that stand first.
    """
    with TemporaryDirectory() as folder:
        record_pairs(pairs, np.arange(len(pairs)), Path(folder, "ordered"))
        record_pairs(pairs, order, Path(folder, "shuffled"))
        with open_memory(Path(folder, "ordered")) as ordered, open_memory(Path(folder, "shuffled")) as shuffled:
            return {layer: _compare(ordered, shuffled, order, layer, own) for layer, own in queries.items()}


def _compare(
    ordered: Engine, shuffled: Engine, order: NDArray[np.int64], layer: str, queries: NDArray[np.float32]
) -> Report:
    outputs = [np.asarray(memory.output(layer, queries), dtype=np.float64) for memory in (ordered, shuffled)]
    sums = [memory.group_sum(layer, queries, by="label").sums for memory in (ordered, shuffled)]
    one, other = (memory.topk(layer, queries, k=BEST) for memory in (ordered, shuffled))
    same = [
        scores.tobytes() == theirs.tobytes() and _above_last(slots, scores) == _above_last(order[found], theirs)
        for slots, scores, found, theirs in zip(one.slots, one.scores, other.slots, other.scores, strict=True)
    ]
    return {"outputs": _apart(*outputs), "sums": _apart(*sums), "same_best": float(np.mean(same))}


def _above_last(slots: NDArray[np.int64], scores: NDArray[np.float32]) -> set[int]:
    """The slots that score more than the last of them."""
    return set(slots[scores > scores[-1]].tolist())


def _apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The greatest distance of two rows, relative to the length of the first."""
    return float((np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)).max())
