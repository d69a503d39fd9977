"""What a disk budget would keep of a training: the recorder's own budget, over steps like those that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from dualform.answers.scan import percent
from dualform.costs.stored_bytes import Stored
from dualform.record.budget import Budget, Bytes
from dualform.store.manifest import Manifest
from dualform.store.weights import WEIGHTS, weights_file

_MOST_STEPS = 20_000
"""How many steps are gone through; of longer trainings, several as one."""


@dataclass(frozen=True)
class StepBytes:
    """What one step was, or would be, to a budget."""

    slots: Bytes
    logs: Bytes

    def times(self, count: int) -> StepBytes:
        return StepBytes(_times(self.slots, count), _times(self.logs, count))


@dataclass(frozen=True)
class Forecast:
    """What a budget keeps of one training."""

    share: float
    """The share of all slots that is kept."""
    first_step: int | None
    """The first step that lacks slots. Outputs and weights are exact up to it. None if all slots are kept."""
    steps: int
    """The number of steps that are recorded before even their logs do not fit."""

    def __str__(self) -> str:
        if self.first_step is None:
            return "all slots"
        whole = f", all of them before step {self.first_step:,}" if self.first_step else ", from the first step on"
        return f"{percent(self.share)} of the slots{whole}"


@dataclass(frozen=True)
class TriedSteps:
    """A trial's steps, as a budget sees them."""

    first: StepBytes
    """Of the first one, by which a share is planned."""
    later: StepBytes
    """Of each further one, on average."""
    others: int
    """Bytes of parameters of no layer, a step."""
    begun: int
    """Bytes that files take before the first step."""
    ending: int
    """Bytes that are written as the training ends."""

    @classmethod
    def of(cls, batches: Sequence[StepBytes], manifest: Manifest) -> TriedSteps:
        """`batches`: of all that was written to the memory of this manifest, of which the first one has the first
        step's slots; those of logs alone have none.
        """
        first, *rest = batches
        count = max(1, sum(own.slots.whole > 0 for own in rest))
        rest = rest or [first]
        slots, logs = sum((own.slots for own in rest), Bytes()), sum((own.logs for own in rest), Bytes())
        kept = manifest.others
        others = 0 if kept is None else kept.form.width // kept.every
        weights = {name: mark.bytes for name, mark in manifest.files.items() if name.startswith(WEIGHTS)}
        ending = weights.pop(weights_file("final"), 0)
        return cls(first, StepBytes(_over(slots, count), _over(logs, count)), others, sum(weights.values()), ending)


def forecast(tried: TriedSteps, stored: Stored, limit: int, steps: int, planned: bool) -> Forecast:
    """Of a training of `steps` steps that takes what is `stored` without a budget; `limit`: of its bytes; `planned`:
    whether the recorder is told how many steps there are.
    """
    at_once = ceil(steps / _MOST_STEPS)
    count = ceil(steps / at_once)
    first, later = tried.first.times(at_once), tried.later.times(at_once)
    disk = _Disk(tried.begun, stored, first.slots + first.logs, later.slots + later.logs, count)
    budget = Budget(limit, disk.measure, tried.ending, count if planned else None, 1.0, tried.others * at_once)
    kept, lacking, done = 0.0, None, 0
    for step in range(count):
        if budget.used_up:
            break
        own = later if step else first
        share = budget.share_of(own.slots, own.logs)
        others = tried.others * at_once if budget.keeps_others else 0
        slots = _times(own.slots, share)
        slots_fit, others_fit = budget.admits(slots + own.logs, Bytes(others))
        others *= others_fit
        if not slots_fit:
            share, slots = 0.0, Bytes()
        budget.charge(slots + own.logs + Bytes(others), others)
        disk.add(slots + own.logs, others)
        if lacking is None and share < 1:
            lacking = step * at_once
        kept, done = kept + share, step + 1
    return Forecast(kept / done if done else 0.0, lacking, min(steps, done * at_once))


class _Disk:
    """What files come to take: of rows and tables, as much of what was charged for them as all of `stored` is of it."""

    def __init__(self, begun: int, stored: Stored, first: Bytes, later: Bytes, steps: int) -> None:
        rows, tables = (first.rows + later.rows * (steps - 1), first.tables + later.tables * (steps - 1))
        own = sum(layer.keys + layer.values for layer in stored.layers.values())
        self._rows, self._tables = own / max(rows, 1), stored.tables / max(tables, 1)
        self._taken: float = begun

    def add(self, recorded: Bytes, others: int) -> None:
        self._taken += recorded.rows * self._rows + recorded.tables * self._tables + others

    def measure(self) -> int:
        return round(self._taken)


def _times(size: Bytes, count: float) -> Bytes:
    return Bytes(round(size.rows * count), round(size.tables * count), round(size.files * count))


def _over(size: Bytes, count: int) -> Bytes:
    return _times(size, 1 / count)
