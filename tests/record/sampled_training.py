"""A training that is recorded with a budget whose shares are said beforehand, and the lots of its rows written anew."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.setup.budget import Budget
from dualform.store.layer import ROWS_OF_A_RANK
from tests.trainings import learn

BUDGET, SEED, ROWS, LENGTH = "1 GB", 7, 9, 4
SHARES = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125)
STEPS = len(SHARES)


def drawn(seed, step, row=None):
    """The lot, in Python's integers."""
    lots = 0
    for number in (seed, step) if row is None else (seed, step, row):
        lots = ((lots ^ number % 2**64) + 0x9E3779B97F4A7C15) % 2**64
        lots = (lots ^ lots >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        lots = (lots ^ lots >> 27) * 0x94D049BB133111EB % 2**64
        lots ^= lots >> 31
    return (lots >> 11) / 2**53


def scripted(monkeypatch, *shares):
    """Have the shares of a recording's steps be these, and the last of them from then on."""
    whole = Budget.__init__

    def begun(budget, *arguments):
        whole(budget, *arguments)
        budget.scripted = iter(shares)

    def share_of(budget, slots, logs):
        budget.share = next(budget.scripted, budget.share)
        return budget.share

    monkeypatch.setattr(Budget, "__init__", begun)
    monkeypatch.setattr(Budget, "share_of", share_of)


class Reader(nn.Module):
    """Tokens, whole rows, patches, row numbers, and an expert that gets some of the tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.tokens, self.expert = nn.Embedding(11, 5), nn.Linear(5, 6), nn.Linear(6, 6)
        self.maps, self.rows = nn.Conv2d(1, 2, 2), nn.Linear(2 * (LENGTH - 1) * 5, 3)

    def forward(self, numbers, mask):
        x = torch.tanh(self.tokens(self.embedding(numbers))) * mask[..., None]
        chosen = (numbers % 2 == 0) & mask
        x = x.masked_scatter(chosen[..., None], self.expert(x[chosen]))
        return self.rows(self.maps(x[:, None]).flatten(1))


class Batches:
    def __init__(self, step):
        generator = torch.Generator().manual_seed(step)
        self.numbers = torch.randint(11, (ROWS, LENGTH), generator=generator)
        self.label = torch.randint(3, (ROWS,), generator=generator)
        self.mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.8


def record(folder, steps=STEPS, optimizer=None, **options):
    model = Reader()
    optimizer = (optimizer or (lambda own: torch.optim.SGD(own, lr=0.05, momentum=0.9)))(model.parameters())
    recorder = dualform.Recorder(model, optimizer, folder, quiet=True, routed="expert", **options)
    with recorder:
        for step in range(steps):
            batch = Batches(step)
            row, position = ((batch.numbers % 2 == 0) & batch.mask).nonzero(as_tuple=True)
            if step == 3:
                row = torch.full_like(row, -1)  # nobody knows whose they are
            said = {"dataset": "odd" if step % 2 else "even", "label": batch.label, "text": TEXTS}
            at = {"expert": {"row": row, "position": position}, "token": {"mask": batch.mask, "token": batch.numbers}}
            with recorder.step(at=at, sample=torch.arange(ROWS), **said):
                loss = cross_entropy(model(batch.numbers, batch.mask), batch.label)
                learn(optimizer, loss)
    return model


TEXTS = [f"row {number}" for number in range(ROWS)]
COLUMNS = ("step", "position", "call", "dataset", "label", "sample", "text")


def picked(whole, space, keep="samples", shares=SHARES, seed=SEED, rank=0):
    """The slots of an unsampled recording that a sample keeps."""
    column = whole.slots(range(whole.info().slots[space]), space)
    found = []
    for slot, (step, own) in enumerate(zip(column["step"].tolist(), np.ma.filled(column["row"], -1), strict=True)):
        number = int(own) if own < 0 else int(own) + rank * ROWS_OF_A_RANK
        if drawn(seed, step, *([number] if keep == "samples" else [])) < shares[step]:
            found.append(slot)
    return found
