"""A small training of two optimizers that saves checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform

ROWS = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(3, (ROWS,), generator=generator)


class Training:
    def __init__(self) -> None:
        self.model = network()
        first = [p for module in self.model[:2] for p in module.parameters()]
        self.optimizers = [
            torch.optim.SGD(first, lr=0.05, momentum=0.9),
            torch.optim.AdamW(self.model[3].parameters(), lr=0.01),
        ]
        self.done = 0

    def save(self, file: Path) -> None:
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": states, "done": self.done}, file)

    def load(self, file: Path, optimizers: bool = True) -> None:
        saved = torch.load(file)
        self.model.load_state_dict(saved["model"])
        self.done = saved["done"]
        for optimizer, state in zip(self.optimizers, saved["optimizers"] if optimizers else (), strict=optimizers):
            optimizer.load_state_dict(state)

    def recorder(self, path: Path, **options) -> dualform.Recorder:
        return dualform.Recorder(self.model, self.optimizers, path, quiet=True, **options)

    def step(self, recorder: dualform.Recorder) -> None:
        x, y = batch(self.done)
        with recorder.step(dataset="odd" if self.done % 2 else "even", label=y, sample=torch.arange(ROWS) + self.done):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            cross_entropy(self.model(x), y).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            for optimizer in self.optimizers[: 1 + self.done % 2]:
                optimizer.step()
        self.done += 1

    def run(
        self, path: Path, until: int, saved: tuple[int, ...] = (), checkpoint: Path | None = None, **options
    ) -> None:
        """Records up to a step; at some of them the recorder is flushed and a checkpoint saved, if there is one."""
        with self.recorder(path, **options) as recorder:
            while self.done < until:
                self.step(recorder)
                if self.done in saved:
                    recorder.flush()
                    if checkpoint is not None:
                        self.save(checkpoint)
