"""Trainings of the coverage table by two ranks, each a process of its own that takes every other row of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.record.processes import launch
from tests.record.sharded_trainings import fully_shard, mesh_of

from .training import Record, Training, recorder_of

RANKS = 2


def replicated(training: Training, record: Record | None) -> None:
    """DistributedDataParallel."""
    _by_ranks(_replicated, training, record)


def parted(training: Training, record: Record | None) -> None:
    """fully_shard: each rank holds half of the rows of each weight."""
    _by_ranks(_parted, training, record)


def _by_ranks(train: Callable[..., None], training: Training, record: Record | None) -> None:
    with TemporaryDirectory() as folder:
        ended = Path(folder) / "ended.pt"
        of_rank = partial(_of_rank, train, training.network, training.precision, training.rule, record, ended)
        assert launch(of_rank, RANKS, Path(folder)) == [0] * RANKS
        weights, training.seconds = torch.load(ended)
    training.model.load_state_dict(weights)


def _of_rank(
    train: Callable[..., None], network: Any, precision: str, rule: str, record: Any, ended: Path, rank: int, _: Path
) -> None:
    training = Training(network, precision)
    train(training, rule, record, rank)
    weights = {name: _whole(own) for name, own in training.model.state_dict().items()}
    if rank == 0:
        torch.save((weights, training.seconds), ended)


def _whole(own: Any) -> torch.Tensor:
    whole: torch.Tensor = own.full_tensor() if hasattr(own, "full_tensor") else own
    return whole


def _replicated(training: Training, rule: str, record: Record | None, rank: int) -> None:
    training.start(rule)
    _loop(training, DistributedDataParallel(training.model), record, rank)


def _parted(training: Training, rule: str, record: Record | None, rank: int) -> None:
    mesh = mesh_of(RANKS)
    training.start(rule, lambda model: fully_shard(model, mesh=mesh))
    _loop(training, training.model, record, rank)


def _loop(training: Training, model: nn.Module, record: Record | None, rank: int) -> None:
    with recorder_of(training, record, rank=rank, ranks=distributed.get_world_size()) as step:
        for batch, columns in training.batches():
            share = slice(rank, None, RANKS)
            with step(**{**columns, "sample": columns["sample"][share]}):
                training.backward({name: values[share] for name, values in batch.items()}, model=model)
                training.update()
