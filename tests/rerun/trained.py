"""Small trainings that can be run again bit for bit, with samples and with tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.trainings import learn


@dataclass(frozen=True)
class Training:
    """A recipe; two of them that are equal train the same network on the same batches."""

    steps: int = 12
    rows: int = 16
    tokens: int = 0
    """Length of each sequence; 0 trains on samples."""
    seed: int = 0
    data_seed: int = 1
    order: tuple[int, ...] | None = None
    """Batches in another order."""
    width: int = 5
    labels: int = 3
    spread: int = 0
    """By how many powers of two the sizes of inputs may differ. Beyond 30, float64 rounds their sums."""

    def built(self):
        torch.manual_seed(self.seed)
        inner = nn.Linear(self.width, 7)
        model = nn.Sequential(inner, nn.ReLU(), nn.Linear(7, self.labels))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batches(self):
        rng = torch.Generator().manual_seed(self.data_seed)
        made = []
        for step in range(self.steps):
            shape = (self.rows, self.tokens) if self.tokens else (self.rows,)
            x = torch.randn(*shape, self.width, generator=rng)
            x *= 2.0 ** -torch.randint(self.spread + 1, (*shape, 1), generator=torch.Generator().manual_seed(step))
            y = torch.randint(self.labels, shape, generator=rng)
            columns = {"dataset": ["odd", "even"][step % 2], "label": y, "sample": torch.arange(self.rows) + step}
            if self.tokens:
                place = torch.randint(40, (self.rows,), generator=rng)[:, None] + torch.arange(self.tokens)
                columns |= {"position": place, "mask": torch.rand(shape, generator=rng) < 0.9}
            made.append((x, y, columns))
        return [made[i] for i in self.order] if self.order else made

    def run(self, make, until=None, query_set=True, fail=False):
        """Train under make(model, optimizer), a recorder; returns it. `fail`: with a division by zero at the end."""
        model, optimizer = self.built()
        batches = list(self.batches())
        recorder = make(model, optimizer)
        with recorder:
            for x, y, columns in batches[:until]:
                with recorder.step(**columns):
                    learn(optimizer, cross_entropy(model(x).reshape(-1, self.labels), y.reshape(-1)))
            if fail:
                raise ZeroDivisionError
            if query_set:
                recorder.query_set("test", batches[0][0][:6], label=np.arange(6))
        return recorder
