"""What recording a training will take, and asking it: bytes and seconds, with keys stored and with digests of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dualform.costs.forecast import Forecast, TriedSteps, forecast
from dualform.costs.stored_bytes import Stored, stored_after
from dualform.costs.trial import Trial
from dualform.errors import BadInput
from dualform.record.budget_plan import BudgetPlan, is_whole
from dualform.record.summary import listed
from dualform.store.byte_counts import readable
from dualform.store.manifest import Manifest

TRIED = 20
"""Steps."""
_LISTED = 10
"""Layers that the text has."""


@dataclass(frozen=True)
class RecordingCost:
    """The cost of one way to record."""

    bytes: int
    """Bytes on disk at the end of the training. Derived files of later queries add one byte for each number of a key.
    """
    bytes_a_second: float
    """Bytes written in a second of training."""
    question_seconds: float
    """Seconds to score every key of every layer against one query: by reading the keys from RAM or, without stored
    keys, by training again."""


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of recording one training, in bytes on disk and seconds. `str(estimate)` is a table."""

    steps: int
    tried: int
    """The number of steps that were recorded for the estimate."""
    step_seconds: float
    """Seconds for one step of the training, recorded."""
    stored: Stored
    """The parts of the bytes of the way `stored`."""
    ways: Mapping[str, RecordingCost]
    """Costs by way of recording. `stored`: as the training computes. `float32`, `bfloat16`: with layers that compute in
    this type, as under autocast. `digests`: with keys=False."""
    notes: Sequence[str]
    """Limits of the estimate, one sentence each."""
    budget: int | None = None
    """The budget in bytes; None without one."""
    planned: Forecast | None = None
    """The forecast for the budget if you pass the number of steps: Recorder(budget=…, steps=…)."""
    unplanned: Forecast | None = None
    """The forecast for the budget without `steps`."""

    def to_json(self) -> dict[str, Any]:
        """The attributes as plain values, by name."""
        own = self.stored
        layers = {name: {"keys": layer.keys, "values": layer.values} for name, layer in own.layers.items()}
        beside = {"tables": own.tables, "others": own.others, "weights": own.weights}
        return {
            "steps": self.steps,
            "tried": self.tried,
            "step_seconds": self.step_seconds,
            "slots": dict(own.slots),
            "ways": {name: vars(way) for name, way in self.ways.items()},
            "layers": layers,
            **beside,
            "notes": list(self.notes),
            **self._budget_json(),
        }

    def _budget_json(self) -> dict[str, Any]:
        if self.planned is None or self.unplanned is None:
            return {}
        return {"budget": {"bytes": self.budget, "planned": vars(self.planned), "unplanned": vars(self.unplanned)}}

    def __str__(self) -> str:
        slots = ", ".join(f"{count:,} slots of {space}" for space, count in self.stored.slots.items())
        lines = [f"{self.steps:,} steps of {_time(self.step_seconds)}: {slots}"]
        stored = self.ways["stored"]
        lines.append(f"  {'':10}{'on disk':>10}{'written':>14}{'a question':>14}")
        for name, way in self.ways.items():
            if name == "stored" or way.bytes != stored.bytes:
                speed = f"{readable(way.bytes_a_second)}/s"
                lines.append(f"  {name:10}{readable(way.bytes):>10}{speed:>14}{_time(way.question_seconds):>14}")
        by_size = sorted(self.stored.layers.items(), key=lambda own: -own[1].keys - own[1].values)
        width = max((len(name) for name, _ in by_size[:_LISTED]), default=0)
        lines.append("of what is stored:")
        for name, layer in by_size[:_LISTED]:
            lines.append(f"  {name:{width}}  keys {readable(layer.keys)}, values {readable(layer.values)}")
        rest = sum(layer.keys + layer.values for _, layer in by_size[_LISTED:])
        lines += [f"  {len(by_size) - _LISTED} more layers: {readable(rest)}"] if rest else []
        own = self.stored
        others = f", other parameters {readable(own.others)}" if own.others else ""
        lines.append(f"  tables {readable(own.tables)}, weights {readable(own.weights)}{others}")
        return "\n".join([*lines, *self._budget_lines(), *self.notes])

    def _budget_lines(self) -> list[str]:
        if self.planned is None or self.unplanned is None:
            return []
        lines = [f"within {readable(self.budget or 0)}:"]
        for said, found in ((f"steps={self.steps}", self.planned), ("without steps=", self.unplanned)):
            ends = f"; recording ends after {found.steps:,} steps" if found.steps < self.steps else ""
            lines.append(f"  {said}: {found}{ends}")
        return lines


def estimate(
    train: Callable[..., object],
    steps: int,
    *,
    samples: int | None = None,
    layers: str | Sequence[str] | None = None,
    tried: int = TRIED,
    folder: str | PathLike[str] | None = None,
    budget: int | str | None = None,
) -> Estimate:
    """Estimate the disk space and time that recording `steps` steps of a training will take.

    It runs a few steps of the training twice, with keys and without.

    - `train`: a function `train(record)` that trains. It calls `record` as it would call `dualform.Recorder`, with or
      without a path. It is stopped after `tried` steps, or earlier if these would take gigabytes.
    - `steps`: the number of steps of the whole training. Later batches are assumed to be like the first.
    - `tried`: the number of steps to run.
    - `samples`: the number of distinct inputs in the training, over all epochs. Inputs that repeat bit for bit are
      stored once. Without it, every input counts as new, which is true of augmented data.
    - `layers`: patterns that replace the `layers` of the training.
    - `folder`: where the trials are written and then removed; None for a temporary folder.
    - `budget`: bytes on disk, as in `Recorder`, to learn which share of the slots would be kept.

    Raises BadInput for counts below 1, for a training that does not record with `record`, and for a budget that
    `Recorder` rejects.
    """
    steps, tried = _count("steps", steps), _count("tried", tried)
    samples = None if samples is None else _count("samples", samples)
    chosen: dict[str, Any] = {} if layers is None else {"layers": layers}
    with TemporaryDirectory(dir=folder, prefix="dualform-estimate-") as place:
        stored = Path(place) / "stored"
        plan = None if budget is None else BudgetPlan.of(budget, "samples", steps, 0, stored, None)
        chosen |= {} if plan is None else {"check": plan.check}
        kept, trial = _tried(train, stored, min(tried, steps), steps, samples, keys=True, **chosen)
        seen = TriedSteps.of(trial.batches, Manifest.read(stored))
        none, again = _tried(train, Path(place) / "digests", min(tried, steps), steps, samples, keys=False, **chosen)
    seconds, rate = trial.step_seconds, _numbers_a_second()
    read = sum(layer.numbers for layer in kept.layers.values()) / rate
    made = sum(layer.entries * layer.d_in for layer in kept.layers.values()) / rate

    def way(total: int, a_step: float, question: float) -> RecordingCost:
        return RecordingCost(total, total / max(steps * a_step, 1e-9), question)

    ways = {"stored": way(kept.total, seconds, read)}
    for name, number_bytes in (("float32", 4), ("bfloat16", 2)):
        changed = sum(layer.bytes_in(number_bytes) - layer.keys - layer.values for layer in kept.layers.values())
        ways[name] = way(kept.total + changed, seconds, read)
    ways["digests"] = way(none.total, again.step_seconds, steps * again.step_seconds + made)
    found = Estimate(steps, trial.steps, seconds, kept, ways, _notes(kept, trial))
    if plan is None:
        return found
    planned, unplanned = (forecast(seen, kept, plan.rule.budget, steps, told) for told in (True, False))
    return replace(found, budget=plan.rule.budget, planned=planned, unplanned=unplanned)


def _count(name: str, number: object) -> int:
    """Raises BadInput for what is none."""
    if not is_whole(number) or number < 1:
        raise BadInput(f"{name} must be a whole number from 1 on, not {number!r}.", field=name)
    return int(number)


def _notes(kept: Stored, trial: Trial) -> list[str]:
    notes = []
    if kept.told_once:
        notes.append(
            f"Each distinct input of {listed(kept.told_once)} is stored once: say how many samples there are "
            "(samples=, --samples), or each is taken for another."
        )
    if kept.altered:
        shares = ", ".join(f"{name} ({share:.0%} of the times)" for name, share in kept.altered.items())
        notes.append(
            f"Samples came again with other inputs, as augmentation and dropout make them, in {shares}: samples= "
            "(--samples) holds for inputs that come again bit for bit, and so many of these are taken for others."
        )
    if kept.unproven:
        notes.append(
            f"No input of {listed(kept.unproven)} came again in {trial.steps} steps: samples= (--samples) holds for "
            "inputs that come again bit for bit. Augmented ones do not, and take as much as if it were not said."
        )
    if trial.steps < trial.wanted:
        notes.append(f"The training ended after {trial.steps} steps: the estimate is made of these.")
    return notes


def _tried(
    train: Callable[..., object], folder: Path, tried: int, steps: int, samples: int | None, **instead: Any
) -> tuple[Stored, Trial]:
    trial = Trial(folder, tried, **instead)
    trial.run(train)
    scratch = folder.with_name(f"{folder.name}-tables")
    scratch.mkdir()
    return stored_after(folder, scratch, steps, samples), trial


def _numbers_a_second() -> float:
    """How many numbers of keys this machine multiplies by a query's in a second."""
    keys, query = np.ones((1 << 13, 1 << 10), dtype=np.float32), np.ones(1 << 10, dtype=np.float32)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        keys @ query
        seconds.append(time.perf_counter() - start)
    return keys.size / min(seconds)


def _time(seconds: float) -> str:
    """A span of time, for people."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
