"""Seconds that something takes, measured beside what it is compared with.

A machine's speed drifts, so contestants take turns within one race: whatever slows the machine down meets all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

PAUSE = 0.05
"""Seconds between measurements: thread pools of one library stop spinning before another begins. Whoever answers faster
than that answers once untimed first, for its own caches were emptied by the others."""
SAMPLE = 0.005
"""Seconds: what takes less is repeated within one measurement."""


class Cannot(Exception):
    """Raised by a contestant that cannot answer, with the reason."""


@dataclass(frozen=True)
class Timing:
    seconds: float
    """Median over the repeats."""
    best: float
    repeats: int

    @classmethod
    def of(cls, measured: list[float]) -> Timing:
        return cls(median(measured), min(measured), len(measured))


@dataclass(frozen=True)
class Ran:
    """A contestant's answer and what it took; or why there is none."""

    answer: Any = None
    timing: Timing | None = None
    why_not: str = ""


@dataclass
class _Runner:
    run: Callable[[], Any]
    answer: Any
    warm: float
    measured: list[float]

    def wants_more(self, repeats: int, patience: float) -> bool:
        done = len(self.measured)
        return done < repeats and (done == 0 or sum(self.measured) + self.warm < patience)

    def measure(self) -> None:
        if self.warm < PAUSE:
            self.run()
            self.warm = _seconds(self.run)
        loops = max(1, min(1000, int(SAMPLE / max(self.warm, 1e-7))))
        began = time.perf_counter()
        for _ in range(loops):
            self.run()
        self.measured.append((time.perf_counter() - began) / loops)


def race(contestants: Mapping[str, Callable[[], Any]], repeats: int, patience: float) -> dict[str, Ran]:
    """Each contestant warms up, for its answer and its pace; then all take turns, `repeats` times.

    One that used up `patience` seconds drops out of further turns, and keeps those it has, at least one. Where the
    warm-up alone took longer, that is its time.
    """
    ran: dict[str, Ran] = {}
    runners: dict[str, _Runner] = {}
    for name, run in contestants.items():
        began = time.perf_counter()
        try:
            answer = run()
        except Cannot as reason:
            ran[name] = Ran(why_not=str(reason))
            continue
        warm = time.perf_counter() - began
        runners[name] = _Runner(run, answer, warm, [warm] if warm > patience else [])
        if SAMPLE < warm <= patience:
            # A first answer may do work that is kept: the second tells what the next ones take.
            runners[name].warm = _seconds(run)
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for runner in runners.values():
                if runner.wants_more(repeats, patience):
                    time.sleep(PAUSE)
                    runner.measure()
    finally:
        gc.enable()
    for name, runner in runners.items():
        ran[name] = Ran(runner.answer, Timing.of(runner.measured))
    return {name: ran[name] for name in contestants}


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
