"""Launches the ranks of a training as processes of their own, joined by gloo."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import distributed

SECONDS = 240


def launch(train: Callable[[int, Path], None], count: int, path: Path) -> list[int]:
    """Run train(rank, path) in so many processes; returns their exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.sharded_trainings", "torch._dynamo"])
    with TemporaryDirectory() as folder:  # they meet in a file: a port that is free now may be another's by then
        meeting = Path(folder, "meeting").as_uri()
        ranks = [context.Process(target=_rank, args=(train, rank, count, meeting, path)) for rank in range(count)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(SECONDS)
        left = [one for one in ranks if one.is_alive()]
        for one in left:
            one.kill()
    assert not left, "a rank waits without end"
    return [one.exitcode for one in ranks]


def _rank(train: Callable[[int, Path], None], rank: int, count: int, meeting: str, path: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=count, timeout=timedelta(seconds=SECONDS)
    )
    train(rank, path)
    if distributed.is_initialized():
        distributed.destroy_process_group()
