"""A disk that fails, and a small training that is recorded on it; what a memory answers of its first steps."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.recorder import Recorder
from dualform.store.files import durable_files
from dualform.store.writing import writer
from tests.trainings import learn

STEPS, BATCH, WIDTH = 6, 4, 24
FLUSHED = (2, 4)
"""After which steps the recorder is flushed."""
PROBED = 3
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
QUERY = np.random.default_rng(5).normal(size=(2, WIDTH)).astype(np.float32)

Call = Callable[..., Any]


class WatchedDisk:
    """Stands in for durable_files.attempt: counts what is done inside a folder, and may do something else instead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[tuple[str, Path]] = []

    def __call__(self, operation: str, path: Path, call: Call, *arguments: Any, **named: Any) -> Any:
        if self.folder not in (path, *path.parents):
            return _ATTEMPT(operation, path, call, *arguments, **named)
        self.done.append((operation, path))
        return self.meet(operation, path, call, *arguments, **named)

    def meet(self, operation: str, path: Path, call: Call, *arguments: Any, **named: Any) -> Any:
        return _ATTEMPT(operation, path, call, *arguments, **named)

    @contextmanager
    def used(self) -> Iterator[WatchedDisk]:
        """The store works on this disk inside, and makes a frame of every batch."""
        with mock.patch.object(durable_files, "attempt", self), mock.patch.object(writer, "JOURNAL_SECONDS", 0.0):
            yield self


_ATTEMPT = durable_files.attempt


class FailingDisk(WatchedDisk):
    """The act of one number fails, or all from then on."""

    def __init__(self, folder: Path, number: int, error: int, for_good: bool) -> None:
        super().__init__(folder)
        self._number, self._error, self._for_good = number, error, for_good
        self.failed: Path | None = None
        """What failed first."""
        self.failures: list[Path] = []
        self.harmless = True
        """Whether nothing failed so far but letting go of folders, which were read and synced."""

    def meet(self, operation: str, path: Path, call: Call, *arguments: Any, **named: Any) -> Any:
        number = len(self.done) - 1
        if number != self._number and not (self._for_good and number > self._number):
            return _ATTEMPT(operation, path, call, *arguments, **named)
        self.harmless &= operation == "close" and path.is_dir()
        self.failed = self.failed or path
        self.failures.append(path)
        if operation == "close":  # which lets go of the file even where it fails
            call(*arguments)

        def fails(*_: Any, **__: Any) -> Any:
            raise OSError(self._error, os.strerror(self._error))

        return _ATTEMPT(operation, path, fails)


class EndingDisk(WatchedDisk):
    """The process ends before the act of one number."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self._number = number

    def meet(self, operation: str, path: Path, call: Call, *arguments: Any, **named: Any) -> Any:
        if len(self.done) - 1 == self._number:
            os._exit(77)
        return _ATTEMPT(operation, path, call, *arguments, **named)


class Training:
    """A small training under AdamW, with a norm that no slot explains."""

    def __init__(self, flushed: Sequence[int] = FLUSHED) -> None:
        """`flushed`: after which steps."""
        torch.manual_seed(3)
        self._flushed = flushed
        self.model = nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.acknowledged = 0
        """Steps that a flush has made durable."""
        self.stepped = 0
        """Steps of the training, recorded or not."""

    def record(self, path: Path, entering: Callable[[], None] = lambda: None, **options: Any) -> None:
        """Record it; `entering` is called inside each step, before anything else. `options`: of the recorder."""
        recorder = Recorder(self.model, self.optimizer, path, quiet=True, **options)
        generator = torch.Generator().manual_seed(4)
        with recorder:
            for step in range(STEPS):
                x, y = (
                    torch.randn(BATCH, WIDTH, generator=generator),
                    torch.randint(0, 2, (BATCH,), generator=generator),
                )
                with recorder.step(dataset="made", label=y, sample=np.arange(BATCH) + step * BATCH):
                    entering()
                    self.step(x, y)
                self.stepped += 1
                wait_for_the_writer(recorder)
                if self.stepped in self._flushed:
                    recorder.flush()
                    self.acknowledge(recorder, self.stepped)
                if self.stepped == PROBED:
                    recorder.query_set("test", x)
        self.acknowledge(recorder, STEPS)

    def acknowledge(self, recorder: Recorder, steps: int) -> None:
        if not recorder._controller.stopped:
            self.acknowledged = steps

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        learn(self.optimizer, cross_entropy(self.model(x), y))

    def weights(self) -> bytes:
        return b"".join(own.detach().numpy().tobytes() for own in self.model.state_dict().values())


def wait_for_the_writer(recorder: Recorder) -> None:
    """Until it has done all that it was given, or has failed: so a failure is there before the next step."""
    recording = recorder._controller.ongoing
    if recording is not None:
        with suppress(dualform.DualformError):
            recording.writer.sink._do(lambda: None, fatal=False)


def answers(path: Path, steps: int) -> list[Any]:
    """What a memory answers of its first steps, of which it has at least so many."""
    where = f"step < {steps}"
    found: list[Any] = []
    with warnings.catch_warnings(), dualform.open(path) as memory:
        warnings.simplefilter("ignore")  # of what stands as it does while a recording is cut off
        for layer, query in (("0", QUERY), ("3", np.ones((1, 5), np.float32))):
            hits = memory.topk(layer, query, k=STEPS * BATCH, where=where)
            sums = memory.group_sum(layer, query, by=["label", "step"], where=where)
            found += [hits.ids.tolist(), hits.flat_scores.tobytes(), sums.groups, sums.sums.tobytes()]
        found += [{name: column.tolist() for name, column in memory.slots(range(steps * BATCH)).items()}]
        weights = memory.weights(at_step=steps - 1).arrays
        # Of the norm, what it was after the last step is known with the next one.
        found += [{name: own.tobytes() for name, own in weights.items() if not name.startswith("2")}]
    return found


def steps_of(path: Path) -> int:
    """How many whole steps a memory holds; none of them in part."""
    with dualform.open(path) as memory:
        found = memory.info()
        slots = found.slots["sample"]
        assert slots % BATCH == 0, "a step is there in part"
        return slots // BATCH
