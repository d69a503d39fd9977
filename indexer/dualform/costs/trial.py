"""Some steps of a training, recorded by the store's own writer into a folder of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dualform.costs.forecast import StepBytes
from dualform.errors import BadInput
from dualform.record.batch_bytes import bytes_of_logs, bytes_of_slots
from dualform.record.owners import optimizers_of
from dualform.record.recorder import Recorder
from dualform.record.step import Step
from dualform.record.wrappers import unwrapped_model
from dualform.store.batch import Batch
from dualform.store.header import Header
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.writer import Writer

_INSTEAD = {"quiet": True, "resume": False}
"""Arguments of the recorder that a trial does not take from the training."""


_MOST_BYTES = 2 << 30
"""Of a trial, as far as its first step tells."""
_FEWEST = 3
"""Steps that are tried however many bytes they take: the first one is not like the others."""


class _Enough(BaseException):
    """The training is stopped: no error, so that what catches errors lets it pass."""


class Trial:
    """A training's first steps."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        check: Callable[[nn.Module, Sequence[Optimizer]], None] | None = None,
        **instead: Any,
    ) -> None:
        """`folder`: of the memory, not there yet; `check`: raises where a network and its optimizers cannot be recorded
        as planned; `instead`: further arguments of the recorder, in place of the training's own.
        """
        self.wanted = steps
        """How many steps are to be recorded."""
        self.batches: list[StepBytes] = []
        """What was written, as a budget sees it."""
        self._check, self._instead = check, {**_INSTEAD, **instead, "path": folder, "sink": self._writer}
        self._recorder: Recorder | None = None
        self._times: list[float] = []
        """When each step began, and when the trial was over, in seconds."""

    def run(self, train: Callable[..., object]) -> None:
        """Train until enough steps are recorded. Raises BadInput for a training that records none, or not by what it is
        given, and whatever the training raises.
        """
        with suppress(_Enough):
            train(self._record)
        if self._recorder is None:
            raise BadInput(
                "The training function did not make a recorder with its argument.",
                hint="Write `def train(record): …`, and in it `with record(model, optimizer) as recorder:`, as with "
                "dualform.Recorder.",
                field="train",
            )
        if not self.steps:
            raise BadInput(
                "The training function did not record any step.",
                hint="Put each batch into `with recorder.step(...)`.",
                field="train",
            )

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return 0 if self._recorder is None else self._recorder.steps

    @property
    def step_seconds(self) -> float:
        """From the beginning of a step to that of the next one, as half of them had it; the first ones of a process are
        slow.
        """
        between = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        return median(between[len(between) // 4 :] or [0.0])

    def _record(self, *arguments: Any, **named: Any) -> Recorder:
        """In place of dualform.Recorder. Raises what it raises, and BadInput for what cannot be tried."""
        given = signature(Recorder).bind_partial(*arguments, **named).arguments
        if given.get("ranks", 1) != 1:
            raise BadInput(
                "estimate cannot run one of several ranks.",
                hint="Train in one process with the rows of one rank; each rank takes as much.",
                field="ranks",
            )
        if self._recorder is not None:
            raise BadInput(
                "The training function made a second recorder.", hint="Train one network in it, once.", field="train"
            )
        for name in ("sink", "budget", "keep", "steps", "seed"):  # a trial keeps every slot of its few steps
            given.pop(name, None)
        if self._check is not None and {"model", "optimizer"} <= given.keys():  # else the recorder says what is missing
            self._check(unwrapped_model(given["model"]), optimizers_of(given["optimizer"]))
        self._recorder = _TrialRecorder(self._begin, **{**given, **self._instead})
        return self._recorder

    def _writer(self, header: Header) -> _NotedWriter:
        return _NotedWriter(header, self.batches)

    def _begin(self) -> None:
        """Another step is about to begin."""
        self._times.append(time.perf_counter())
        if self.steps == 1 and self._recorder is not None:
            most = _MOST_BYTES // max(self._recorder.summary.bytes_a_step or 0, 1)
            self.wanted = min(self.wanted, max(most, _FEWEST))
        if self.steps >= self.wanted:
            raise _Enough


class _NotedWriter(Writer):
    def __init__(self, header: Header, batches: list[StepBytes]) -> None:
        self._seen_batches = batches
        super().__init__(header)

    def append(self, batch: Batch) -> None:
        self._seen_batches.append(StepBytes(bytes_of_slots(batch), bytes_of_logs(batch)))
        super().append(batch)

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """What samples look like is not tried: encoding it takes as long as in the training itself."""


class _TrialRecorder(Recorder):
    def __init__(self, begin: Callable[[], None], **arguments: Any) -> None:
        self._begin_trial_step = begin
        super().__init__(**arguments)

    @contextmanager
    def step(self, *arguments: Any, **named: Any) -> Iterator[Step]:
        self._begin_trial_step()
        with super().step(*arguments, **named) as step:
            yield step
