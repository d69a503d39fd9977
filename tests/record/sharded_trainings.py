"""Trainings of a model that fully_shard parts over the ranks, each of which is a process of its own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import distributed, nn

from dualform.errors import RecordingError
from dualform.record.recorder import Recorder
from tests.trainings import learn, take_steps

from . import rank_trainings
from .rank_trainings import recorder_of

STEPS, WIDTH, ROWS = 8, 130, 33


def mesh_of(*sizes, **options):
    """Of the processor. What it needs of torch loads in seconds, so with the first test that wants it."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, **options)


def fully_shard(model, **options):
    from torch.distributed import fsdp

    return fsdp.fully_shard(model, **options)


def net(rows=ROWS, norm=nn.LayerNorm):
    """33 rows are 17 and 16 on two ranks; the entries of 33 x 130 numbers are watched in part."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, rows), norm(rows), nn.ReLU(), nn.Linear(rows, 10))


def sharded(model, **policy):
    """Its first layer for itself, and the others with the model."""
    mesh = mesh_of(distributed.get_world_size())
    fully_shard(model[0], mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def batch(rank, step):
    """Of other sizes on other ranks."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4 + rank, WIDTH, generator=generator), torch.randint(10, (4 + rank,), generator=generator)


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).float(), y)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def decoupled(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sgd(rank, path):
    """Two micro-batches an update, of which the first leaves gradients where they are; each is a step. One parameter is
    left whole, and averaged by hand.
    """
    model = net()
    left = model[3].bias
    sharded(model, ignored_params={left})
    optimizer = momentum(model)
    with recorder_of(model, optimizer, path / "sharded-sgd") as recorder:
        for step in range(STEPS):
            x, y = batch(rank, step)
            model.set_requires_gradient_sync(step % 2 == 1)
            with recorder.step(label=y):
                loss_of(model, x, y).backward()
                if step % 2:
                    distributed.all_reduce(left.grad)
                    left.grad /= distributed.get_world_size()
                    nn.utils.clip_grad_norm_([own for own in model.parameters() if own is not left], 0.3)
                    optimizer.step()
                    optimizer.zero_grad()


def train(rank, model, recorder=None):
    """Evaluates before each step, which leaves the model's own parameters whole."""
    optimizer = decoupled(model) if recorder is None else recorder[1]
    for step in range(STEPS):
        x, y = batch(rank, step)
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
        with nullcontext() if recorder is None else recorder[0].step(label=y):
            learn(optimizer, loss_of(model, x, y), lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.3))


def whole(model):
    return {name: own.full_tensor() for name, own in model.state_dict().items()}


def adamw(rank, path, name="sharded-adamw", **policy):
    model = sharded(net(), **policy)
    optimizer = decoupled(model)
    with recorder_of(model, optimizer, path / name) as recorder:
        train(rank, model, (recorder, optimizer))
        if rank == 0:
            recorder.flush()  # which is no meeting of ranks
        recorder.query_set("test", batch(0, 0)[0], label=batch(0, 0)[1])
        # All but the scale and shift of the norm.
        assert recorder.summary.trained - recorder.summary.recorded == 2 * ROWS
    torch.save(whole(model), path / f"{name}-{rank}.pt")


def half_precision(rank, path):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    adamw(rank, path, "sharded-half", mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def few_rows(rank, path):
    """One row on two ranks: the last one holds none."""
    model = sharded(net(1, norm=nn.Identity))
    optimizer = decoupled(model)
    with recorder_of(model, optimizer, path / "sharded-few") as recorder:
        train(rank, model, (recorder, optimizer))


def unrecorded(rank, path):
    model = sharded(net())
    train(rank, model)
    torch.save(whole(model), path / f"unrecorded-{rank}.pt")


def accumulated_inside(rank, path):
    """Two micro-batches in one step."""
    model = sharded(net())
    optimizer = momentum(model)
    with recorder_of(model, optimizer, path / "sharded-inside") as recorder:
        for step in range(0, STEPS, 2):
            (x, y), (z, _) = batch(rank, step), batch(rank, step + 1)
            with recorder.step(label=y):
                optimizer.zero_grad()
                model.set_requires_gradient_sync(False)
                loss_of(model, x, y).backward()
                model.set_requires_gradient_sync(True)
                loss_of(model, z, y).backward()
                optimizer.step()


class Tokens(nn.Module):
    """Layers that are ranges of rows of a parameter, layers that share one, and what is no layer of a sharded model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.attention = nn.Embedding(11, 6), nn.MultiheadAttention(6, 2, batch_first=True)
        self.convolution, self.states = nn.Conv1d(6, 9, 3, groups=3, padding=1), nn.LSTM(9, 6, batch_first=True)
        self.free, self.head = nn.Parameter(torch.eye(6)), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        h = self.embedding(x) @ self.free
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.states(self.convolution(h.transpose(1, 2)).transpose(1, 2))[0])


def transformer(rank, path):
    model = fully_shard(Tokens(), mesh=mesh_of(distributed.get_world_size()))
    optimizer = decoupled(model)
    generator = torch.Generator().manual_seed(rank)
    with recorder_of(model, optimizer, path / "sharded-tokens") as recorder:
        take_steps(
            recorder,
            optimizer,
            (torch.randint(11, (4 + rank, 7), generator=generator) for _ in range(STEPS)),
            lambda x: nn.functional.cross_entropy(model(x).transpose(1, 2), x.roll(-1, 1)),
        )


def refused(rank, path):
    """What is refused with two ranks alone."""
    model = sharded(net())
    with pytest.raises(RecordingError) as caught:
        Recorder(model, momentum(model), path / "refused")
    assert str(caught.value) == (
        "The model is sharded over 2 processes, and this recorder sees only one part. Make a recorder on every "
        "rank, with rank= and ranks=."
    )


def run(rank, path):
    """All trainings of two ranks, one after another in the same two processes: processes take seconds to start."""
    for of_ranks in (
        *(rank_trainings.even, rank_trainings.budgeted, rank_trainings.uneven, rank_trainings.accumulated),
        *(rank_trainings.fewer, rank_trainings.fewer_of_the_first, sgd, adamw, half_precision, few_rows),
        *(accumulated_inside, transformer, refused, unrecorded),
        *(rank_trainings.never_left, rank_trainings.killed),
    ):
        of_ranks(rank, path)
