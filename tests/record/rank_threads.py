"""Ranks that are threads of this process, over an exchange of their own."""

from __future__ import annotations

import copy
import threading

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.ranks import Ranks
from dualform.record.recorder import Recorder

COUNT, ROWS, STEPS = 2, 6, 8


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def data(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Table:
    """Where threads, each of them a rank, add up what they bring."""

    def __init__(self, seconds=120.0):
        self.barrier = threading.Barrier(COUNT, timeout=seconds)
        self.brought = [None] * COUNT

    def gather(self, rank, own):
        self.brought[rank] = own
        try:
            self.barrier.wait()
            found = list(self.brought)
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("nobody came") from None
        return found

    def total(self, rank, numbers):
        return sum(self.gather(rank, numbers))


class Seat:
    """An exchange over a table."""

    def __init__(self, table, rank):
        self.table, self.rank, self.closed = table, rank, 0

    def total(self, numbers):
        return self.table.total(self.rank, numbers.copy())

    def gather(self, own):
        return self.table.gather(self.rank, copy.deepcopy(own))

    def close(self):
        self.closed += 1


class Fleet:
    """Ranks as threads, whose gradients are averaged as data parallelism does it."""

    def __init__(self, path, seconds=120.0, models=None, make=sgd):
        self.make = make
        self.path, self.averaging = path, Table()
        measuring = Table(seconds)
        self.seats = [Seat(measuring, rank) for rank in range(COUNT)]
        self.errors = []
        self.models = models or [net() for _ in range(COUNT)]

    def average(self, rank, model):
        for parameter in model.parameters():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = torch.from_numpy(self.averaging.total(rank, grad.numpy())) / COUNT

    def run(self, train, **options):
        threads = [threading.Thread(target=self._guarded, args=(train, rank, options)) for rank in range(COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, train, rank, options):
        try:
            model, ranks = self.models[rank], Ranks(rank, COUNT, self.seats[rank])
            optimizer = self.make(model)
            with Recorder(model, optimizer, self.path, ranks=ranks, **options) as recorder:
                train(rank, model, optimizer, recorder)
        except BaseException as error:
            self.errors.append(error)


def two(model):
    return [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters(), lr=0.01)]


def check_memory_of_ranks(memory):
    """Steps, rank after rank in each, and a reconstruction error."""
    expected = [data(rank, step) for step in range(STEPS) for rank in range(COUNT)]
    slots = np.arange(STEPS * COUNT * ROWS)
    np.testing.assert_array_equal(memory.keys("0", slots), torch.cat([x for x, _ in expected]).numpy())
    columns = memory.slots(slots, "sample")
    assert columns["label"].tolist() == torch.cat([y for _, y in expected]).tolist()
    samples = [100 * rank + row for _ in range(STEPS) for rank in range(COUNT) for row in range(ROWS)]
    assert columns["sample"].tolist() == samples
    for name, reconstruction in memory.verify().items():
        assert reconstruction.exact, (name, reconstruction.reason)
        assert reconstruction.reconstruction_error <= 1e-5


def one_step(fleet, rank, model, optimizer, recorder, x, y, update=True):
    with recorder.step(label=y):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if update:
            fleet.average(rank, model)
            for parameter in model.parameters():
                parameter.grad.nan_to_num_(0.0)
            optimizer.step()


def reasons(path):
    return {reconstruction.reason for reconstruction in dualform.open(path).verify().values()}
