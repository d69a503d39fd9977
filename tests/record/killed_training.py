"""A training that saves checkpoints and resumes from them, and notes what becomes of each step, until it is killed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import dualform
from dualform.store.journal import JournalWriter
from dualform.store.writing import writer
from tests.trainings import learn

STEPS, FLUSH_EVERY = 18, 5
CLOCK = 0.03
"""Seconds of the commit clock, which has 5 of them where nobody is in a hurry."""


@dataclass(frozen=True)
class Kind:
    width: int
    rows: int
    keys: bool = True
    ranks: int = 1


KINDS = {
    "a small network": Kind(6, 4),
    "a small network without keys": Kind(6, 4, keys=False),
    "a large network": Kind(256, 128),
    "two ranks": Kind(6, 4, ranks=2),
}


class KilledTraining:
    """Of one rank, which goes on from the checkpoint in `folder` where there is one."""

    def __init__(self, folder: Path, kind: Kind, rank: int = 0) -> None:
        self.folder, self.kind, self.rank, self.done = folder, kind, rank, 0
        torch.manual_seed(0)
        width = kind.width
        self.model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.done = saved["done"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def save(self) -> None:
        saved = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}
        torch.save(saved, self.folder / "saving")
        os.replace(self.folder / "saving", self.checkpoint)

    def run(self, note=lambda what, step: None) -> None:
        kind = self.kind
        options = {"rank": self.rank, "ranks": kind.ranks} if kind.ranks > 1 else {}
        model = DistributedDataParallel(self.model) if kind.ranks > 1 else self.model
        recorder = dualform.Recorder(
            model, self.optimizer, self.folder / "m", keys=kind.keys, resume=True, quiet=True, **options
        )
        with recorder:
            while self.done < STEPS:
                note("begins", self.done)
                generator = torch.Generator().manual_seed(1000 * self.rank + self.done)
                x, y = torch.randn(kind.rows, kind.width, generator=generator), torch.arange(kind.rows) % 3
                with recorder.step(dataset="odd" if self.done % 2 else "even", label=y, sample=self.done + y):
                    learn(self.optimizer, cross_entropy(model(x), y))
                self.done += 1
                if self.done % FLUSH_EVERY == 0:
                    recorder.flush()
                    note("durable", self.done)
                    if kind.ranks > 1:
                        distributed.barrier()
                    if self.rank == 0:
                        self.save()
            note("ends", self.done)
            while note.__name__ != "<lambda>":
                time.sleep(1)  # until it is killed


def record(rank: int, folder: Path, name: str, notes: Path) -> None:
    """Records in a process of its own. A line of `notes` for what happens: what, steps so far, the writer's clock."""
    log = os.open(notes.with_suffix(f".{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    training = KilledTraining(folder, KINDS[name], rank)
    taken = training.done

    def note(what: str, step: int) -> None:
        os.write(log, f"{what} {step} {time.monotonic()}\n".encode())

    def noted(owner: type, method: str, before: str, after: str) -> None:
        whole = getattr(owner, method)

        def call(*arguments):
            if before:
                note(before, taken)
            found = whole(*arguments)
            if after:
                note(after, taken)
            return found

        setattr(owner, method, call)

    appended = writer.Writer.append

    def append(self: writer.Writer, batch) -> None:
        nonlocal taken
        if batch.extents:  # else it has what was logged of the step before
            taken += 1
            note("took", taken)
        appended(self, batch)

    writer.JOURNAL_SECONDS, writer.FRAME_BYTES, writer.WRITTEN_AT_ONCE = CLOCK, 1 << 20, 1 << 18
    writer.Writer.append = append
    noted(writer.Writer, "tick", "tick", "")
    noted(writer.Writer, "commit", "writes", "durable")
    noted(JournalWriter, "append", "writes", "durable")
    training.run(note)


def finish(rank: int, folder: Path, name: str) -> None:
    """Goes on to the end."""
    KilledTraining(folder, KINDS[name], rank).run()
