"""Data-parallel trainings whose ranks are real processes: uneven batches, micro-batches, clipping, a rank that dies."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import dualform
from dualform.record.recorder import Recorder
from dualform.store.snapshot import Snapshot

from .processes import launch

STEPS = 8


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def batch(rank, step, rows):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def recorder_of(model, optimizer, path):
    return Recorder(model, optimizer, path, rank=distributed.get_rank(), ranks=distributed.get_world_size(), quiet=True)


def even(rank, path):
    """As most are."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / "even") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step, 6)
            with recorder.step(label=y, sample=100 * rank + torch.arange(6)):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()


def uneven(rank, path):
    """Each rank has another number of rows; gradients are clipped."""
    model = DistributedDataParallel(net())
    optimizer = adamw(model)
    with recorder_of(model, optimizer, path / "uneven") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step, 4 + rank + step % 3)
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()


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


def accumulated_inside(rank, path):
    """The same in one step."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with recorder_of(model, optimizer, path / "inside") as recorder:
        for step in range(0, STEPS, 2):
            (x, y), (z, _) = batch(rank, step, 4 + rank), batch(rank, step + 1, 4 + rank)
            with recorder.step(label=y):
                optimizer.zero_grad()
                with model.no_sync():
                    cross_entropy(model(x), y).backward()
                cross_entropy(model(z), y).backward()
                optimizer.step()


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


def two_ranks(rank, path):
    for train in (even, uneven, accumulated, accumulated_inside, killed):
        train(rank, path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("two")
    codes = launch(two_ranks, 2, path)
    assert codes == [0, -signal.SIGKILL]
    return path


def check_exact(memory):
    for name, certificate in memory.verify().items():
        assert certificate.exact, (name, certificate.reason)
        assert certificate.relative_error <= 1e-5, name


def test_ranks_are_one_exact_memory(two):
    with dualform.open(two / "even") as memory:
        check_exact(memory)
        labels = [batch(rank, step, 6)[1] for step in range(STEPS) for rank in range(2)]
        columns = memory.slots(np.arange(STEPS * 2 * 6), "sample")
        assert columns["label"].tolist() == torch.cat(labels).tolist()
        assert columns["sample"].tolist() == [*range(6), *range(100, 106)] * STEPS
    factors = np.asarray(Snapshot.open(two / "even").table("factors")["factor"])
    np.testing.assert_allclose(factors, np.full(STEPS * 4, 1 / 2), rtol=1e-5)


def test_ranks_with_batches_of_different_sizes_are_one_exact_memory(two):
    with dualform.open(two / "uneven") as memory:
        check_exact(memory)
        rows = [batch(rank, step, 4 + rank + step % 3)[0] for step in range(STEPS) for rank in range(2)]
        np.testing.assert_array_equal(memory.keys("0"), torch.cat(rows).numpy())


@pytest.mark.parametrize(("name", "steps"), [("accumulated", STEPS), ("inside", STEPS // 2)])
def test_micro_batches_without_synchronisation_are_explained(two, name, steps):
    with dualform.open(two / name) as memory:
        check_exact(memory)
        assert memory.info().steps == steps
        assert memory.keys("0").shape == (STEPS * (4 + 5), 5)


def test_a_rank_that_is_killed_leaves_its_shard_to_its_last_commit(two):
    with dualform.open(two / "killed") as memory:
        info = memory.info()
        assert info.cut_off == (
            "the recording was cut off after step 3, or still runs: shard-00001 did not come to its end."
        )
        assert info.steps == 4
        assert memory.keys("0").shape == (4 * 2 * 4, 5)
