"""Data-parallel trainings, each of which a rank runs as a process of its own."""

from __future__ import annotations

import os
import signal

import torch
from torch import distributed, nn
from torch.distributed.algorithms import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dualform.record.recorder import Recorder
from tests.record.rank_threads import adamw, net, sgd
from tests.trainings import learn, take_steps

STEPS = 8


def batch(rank, step, rows):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator)


def recorder_of(model, optimizer, path, **options):
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    return Recorder(model, optimizer, path, rank=rank, ranks=ranks, quiet=True, **options)


def even(rank, path):
    """As most are."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / "even") as recorder:
        take_steps(
            recorder,
            optimizer,
            (batch(rank, step, 6) for step in range(STEPS)),
            lambda x, y: cross_entropy(model(x), y),
            label=lambda x, y: y,
            sample=100 * rank + torch.arange(6),
        )


def budgeted(rank, path):
    """A budget that holds a share of what is planned."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    recorder = recorder_of(model, optimizer, path / "budgeted", budget="40 MB", steps=150, seed=3)
    with recorder:
        take_steps(
            recorder,
            optimizer,
            (batch(rank, step, 600) for step in range(STEPS)),
            lambda x, y: cross_entropy(model(x), y),
            label=lambda x, y: y,
        )


def uneven(rank, path):
    """Each rank has another number of rows; gradients are clipped."""
    model = DistributedDataParallel(net())
    optimizer = adamw(model)
    with recorder_of(model, optimizer, path / "uneven") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step, 4 + rank + step % 3)
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y), lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.3))


def accumulated(rank, path):
    """Two micro-batches an update, of which the first does not synchronise; each is a step."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / "accumulated") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step, 4 + rank)
            with recorder.step(label=y):
                if step % 2 == 0:
                    optimizer.zero_grad()
                    with model.no_sync():
                        cross_entropy(model(x), y).backward()
                else:
                    cross_entropy(model(x), y).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                    optimizer.step()


def fewer(rank, path, shorter=1):
    """One rank has three batches fewer than the other."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / f"fewer-{shorter}") as recorder, Join([model, recorder]):
        take_steps(
            recorder,
            optimizer,
            (batch(rank, step, 6) for step in range(STEPS - 3 * (rank == shorter))),
            lambda x, y: cross_entropy(model(x), y),
            label=lambda x, y: y,
        )


def fewer_of_the_first(rank, path):
    fewer(rank, path, shorter=0)


LEFT = list[Recorder]()


def never_left(rank, path):
    """The first rank alone enters a recorder, which its process never leaves."""
    if rank == 0:
        model = net()
        optimizer = sgd(model)
        LEFT.append(Recorder(model, optimizer, path / "never", quiet=True).__enter__())
        take_steps(
            LEFT[0], optimizer, (batch(0, step, 6) for step in range(3)), lambda x, y: cross_entropy(model(x), y)
        )
        LEFT[0].flush()


def killed(rank, path):
    """Rank 1 dies without a word. Rank 0 hears of it from the training's own group."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / "killed") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step, 4)
            with recorder.step(label=y):
                optimizer.zero_grad()
                if (rank, step) == (1, 5):
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    cross_entropy(model(x), y).backward()
                except RuntimeError:  # the other rank is gone
                    return
                optimizer.step()
            if step == 3:
                recorder.flush()
