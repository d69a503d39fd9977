"""Who the taps of a training report to."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.lineage import Known, KnownRows
from dualform.record.metadata import Metadata
from dualform.record.owners import Owners
from dualform.record.query_sets import QuerySetTaker
from dualform.record.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.record.taps.watcher import step_begins

_ARRIVALS = 1 << 32
"""Numbers that calls of one backward pass of compiled code are counted down from: more than there are."""


class Collector:
    """Who the taps of a training report to: it hands everything to the step that runs, or to the query set."""

    def __init__(
        self,
        owners: Owners,
        late: Callable[[Tap], None],
        refused: Callable[[Tap, RecordingError], None],
        failed: Callable[[Exception, str], None],
    ) -> None:
        """`late` is told of a gradient that came outside its step, `refused` of a call in a step without keys, and
        `failed` of what the recorder itself raised in a hook, and of which layer.
        """
        self.step: StepRecord | None = None
        """The step that runs."""
        self.query_set: QuerySetTaker | None = None
        """The query set that is being taken."""
        self._before: weakref.ref[StepRecord] | None = None
        """The step that began last: what it collected is not kept alive for it."""
        self._owners, self._late, self._refused, self._failed = owners, late, refused, failed
        self._calls = 0
        self.followed: KnownRows | None = None
        self._told_unseen = False
        self._pass, self._arrivals = -1, 0
        self.began = torch.zeros((), dtype=torch.int64, device="cpu")

    def begin(self, step: int, metadata: Metadata) -> StepRecord:
        """Collect another step from now on."""
        self.began = torch.tensor(
            self._calls, device="cpu"
        )  # another tensor: that of an earlier step may be waited for
        before = None if self._before is None else self._before()
        self.step = StepRecord(step, metadata, self._calls, self._owners, before)
        self._before = weakref.ref(self.step)
        step_begins(self)
        if self.followed is not None:
            self.followed.begin()
            self.step.followed = self.followed
        return self.step

    def forward_mode(self) -> str | None:
        if self.query_set is not None:
            return "query_set"
        return None if self.step is None else "step"

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        if self.query_set is not None:
            self.query_set.probed(tap, key, rows)

    def called(self, tap: Tap, raw: bool, rows: Known | None = None) -> int:
        if self.step is not None:
            self.step.called(tap, raw, self._calls)
            if rows is not None:
                self.step.rows[self._calls] = rows
        self._calls += 1
        return self._calls - 1

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        if self.step is None or began < self.step.since:
            return -1
        backward = torch._C._current_graph_task_id()
        if backward != self._pass:
            self._calls += _ARRIVALS
            self._pass, self._arrivals = backward, self._calls
        self.step.called(tap, raw)
        self._arrivals -= 1
        return self._arrivals

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        if self.step is not None:
            self.step.called_without_gradient(tap, why)

    def unseen(self, tap: Tap) -> None:
        if self.step is None:
            return
        self.step.called_unseen(tap)
        if not self._told_unseen:
            self._told_unseen = True
            warnings.warn(
                f"layer {tap.name!r}: {self.step.unseen[tap.name]}. The gradients of such calls are not "
                "recorded, and the status of layers trained by them says so. Use loss.backward() to record them.",
                RuntimeWarning,
                stacklevel=2,
            )

    def refused(self, tap: Tap, error: RecordingError) -> None:
        if self.query_set is not None:
            raise error
        self._refused(tap, error)

    def failed(self, error: Exception, layer: str = "") -> None:
        if self.query_set is not None:
            raise error
        self._failed(error, layer)

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        if self.step is not None and call >= self.step.since:
            self.step.received(tap, call, key, error, cast)
        else:
            self._late(tap)
