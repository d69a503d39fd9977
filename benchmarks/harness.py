"""The parts that all sections share: the plan of a run, its results, races, processes.

A section is a function `run(plan, section)` in one of the modules that SECTIONS names. It runs in its own process
and adds rows to its `Section`: a question, the cell of each contestant, and a ratio that may have a target.
"""

from __future__ import annotations

import gc
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any, Literal, TypeAlias, TypeVar
from unittest import mock

A = TypeVar("A")
N = TypeVar("N")

OURS = "dualform"
K = 10
PAUSE = 0.05
"""Seconds between measurements: thread pools of one library stop spinning before another begins. A contestant that
answers faster than that answers once untimed first, for the others emptied its caches."""
SAMPLE = 0.005
"""Seconds: what takes less is repeated within one measurement."""

FELT = {
    "cold": ("processes", "First answers"),
    "recording": ("recording", "Recording"),
    "checkpointing": ("recording", "Recording with checkpointing"),
    "long_training": ("recording", "A long training of small steps"),
    "serving": ("serving", "Serving"),
    "explorer": ("processes", "Pages for a browser"),
    "strangers": ("serving", "Light questions beside others' floods"),
    "memory": ("serving", "Memory of a server"),
}
"""The costs that a person notices: first answers, recording, many clients. By section: module and title."""
REPEATED = {
    "topk": ("search", "Top-10"),
    "filtered": ("search", "Top-10 under a filter"),
    "grouped": ("search", "The best of each group"),
    "sums": ("search", "Sums by group"),
    "contributions": ("values", "Contributions along a direction"),
    "gradients": ("values", "Dot products of gradients"),
    "ledger": ("values", "Examples followed through a training"),
    "growth": ("search", "Growth"),
    "weights": ("values", "Ablated weights"),
    "adamw": ("values", "Ablated weights under AdamW"),
}
"""The cost of questions to a memory that is open and warm."""
SECTIONS = FELT | REPEATED
"""In the order of the document."""


@dataclass(frozen=True)
class Plan:
    """How large a run is, and where its data are."""

    folder: Path
    """Scratch: the benchmark's memory, its queries, and what peers keep on disk."""
    quick: bool = False
    images: Path | None = None
    """Folder with mnist/ and fashion-mnist/."""
    backend: str | None = None
    """Of dualform; None is what it picks by itself."""
    slots: int = 384_000
    """T."""
    width: int = 800
    """d, of generated keys."""
    growth: tuple[int, ...] = (96_000, 192_000, 384_000, 768_000)
    queries: tuple[int, ...] = (1, 64, 1024)
    repeats: int = 7
    patience: float = 10.0
    """Seconds: a contestant that needs longer for one answer is not waited for."""
    build_patience: float = 300.0
    """Seconds that a peer may take to load the keys."""
    steps: int = 350
    """Of the continual study's training on each of its datasets, recorded and not."""
    threads: tuple[int, ...] = (1, 2, 4)
    """On which trainings run, one number after the other."""

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    @property
    def few(self) -> int:
        """Repeats of what takes seconds."""
        return min(3, self.repeats)


QUICK: dict[str, Any] = {
    "quick": True,
    "slots": 48_000,
    "growth": (12_000, 24_000, 48_000),
    "queries": (1, 64),
    "repeats": 3,
    "patience": 1.5,
    "build_patience": 20.0,
    "steps": 40,
    "threads": (2,),
}
"""Settings for some minutes, on an eighth of the slots."""


@dataclass(frozen=True)
class Cell:
    """One contestant's result for one question."""

    seconds: float | None = None
    """Median; None without an answer."""
    best: float | None = None
    repeats: int = 0
    why_not: str = ""
    """The reason for a missing time."""
    wrong: str = ""
    """The error in the answer: such a time counts for nothing."""
    remark: str = ""
    """A remark of the check of the answer."""
    bytes: float | None = None
    """Of memory, where those are the question and not the time."""
    worst: float | None = None
    """The slowest repeat; None where the spread is not told."""

    @property
    def counts(self) -> bool:
        return self.seconds is not None and not self.wrong

    @classmethod
    def of(cls, measured: Sequence[float], **said: Any) -> Cell:
        return cls(median(measured), min(measured), len(measured), **said)


@dataclass(frozen=True)
class Target:
    kind: Literal["at most", "at least"]
    value: float
    unit: Literal["", "s", "bytes"] = ""
    """Of a target for dualform's own figure; "" for one of the ratio."""


@dataclass(frozen=True)
class Row:
    """A question, and everyone's cell."""

    question: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By contestant; dualform's is OURS."""
    beside: str = ""
    """The other side of the ratio."""
    beside_seconds: float | None = None
    ratio: float | None = None
    target: Target | None = None
    ratios: tuple[float, float] | None = None
    """The least and the greatest of the repeats; None where the spread is not told."""

    @property
    def ours(self) -> Cell:
        return self.cells.get(OURS, Cell())

    @property
    def used(self) -> float | None:
        """How much of the target is used up: 1 if it is just met, more if it is missed; None without it or a figure."""
        if self.target is None:
            return None
        figure = {"": self.ratio, "s": self.ours.seconds, "bytes": self.ours.bytes}[self.target.unit]
        if figure is None:
            return None
        return figure / self.target.value if self.target.kind == "at most" else self.target.value / figure

    @property
    def met(self) -> bool | None:
        """None without a target or a figure."""
        return None if self.used is None else self.used <= 1 and not self.ours.wrong


@dataclass
class Section:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Further figures, ready to print."""
    notes: list[str] = field(default_factory=list)
    date: str = ""
    seconds: float = 0.0
    """The whole section."""

    def alone(self, question: str, cell: Cell, target: Target | None = None) -> None:
        """Add a row with only our figure."""
        self.rows.append(Row(question, {OURS: cell}, target=target))

    def compare(
        self,
        question: str,
        cells: Mapping[str, Cell],
        beside: str,
        target: Target | None = None,
        *,
        seconds: float | None = None,
        times: bool = False,
        **said: Any,
    ) -> None:
        """Add a row with the ratio of our time to another.

        Args:
            beside: a contestant, or what else took `seconds`.
            times: the ratio is that of the other to ours, for what should be many times as fast.
            said: other fields of the row.
        """
        ours, other = cells[OURS].seconds, cells[beside].seconds if seconds is None else seconds
        if "ratio" not in said and ours is not None and other is not None:
            said["ratio"] = other / ours if times else ours / other
        self.rows.append(Row(question, cells, beside, other, target=target, **said))

    def compare_fastest(
        self, question: str, cells: Mapping[str, Cell], target: Target | None = None, *, times: bool = False
    ) -> None:
        """Add a row with the ratio of our time to that of the fastest peer whose answer is right; names that begin with
        dualform are not peers.
        """
        peers = {
            name: cell.seconds
            for name, cell in cells.items()
            if cell.seconds is not None and not (cell.wrong or name.startswith(OURS))
        }
        if peers:
            name = min(peers, key=peers.__getitem__)
            self.compare(question, cells, f"fastest peer: {name}", target, seconds=peers[name], times=times)
        else:
            self.rows.append(Row(question, cells, target=target))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Section:
        rows = [
            Row(
                **{
                    **row,
                    "cells": {name: Cell(**cell) for name, cell in row["cells"].items()},
                    "target": Target(**row["target"]) if row["target"] else None,
                    "ratios": tuple(row["ratios"]) if row.get("ratios") else None,
                }
            )
            for row in plain["rows"]
        ]
        return cls(**{**plain, "rows": rows})


def measured(name: str, plan: Plan) -> Section:
    """The section, measured in this process."""
    warnings.filterwarnings("ignore", message=".*not writable.*")
    module, title = SECTIONS[name]
    section, began = Section(name, title), time.perf_counter()
    getattr(import_module(f"benchmarks.{module}"), name)(plan, section)
    section.date, section.seconds = date.today().isoformat(), time.perf_counter() - began
    return section


def asked(count: int) -> str:
    return "1 query" if count == 1 else f"{count:,} queries"


# ---- Races

Check: TypeAlias = Callable[[str, Any], tuple[str, str]]
"""Takes a contestant's name and answer. Returns an error and a remark, either may be ""."""


def unchecked(name: str, answer: Any) -> tuple[str, str]:
    return "", ""


class Cannot(Exception):
    """Raised by a contestant that cannot answer, with the reason."""


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
            self.warm = seconds_of(self.run)
        loops = max(1, min(1000, int(SAMPLE / max(self.warm, 1e-7))))
        self.measured.append(timeit(self.run, number=loops) / loops)


def race(
    contestants: Mapping[str, Callable[[], Any]],
    repeats: int,
    patience: float,
    check: Check = unchecked,
) -> dict[str, Cell]:
    """Seconds of each contestant, measured in turns, since a machine's speed drifts.

    Each warms up, for its answer and its pace; then all take turns, `repeats` times. One that used up `patience`
    seconds drops out of further turns, and keeps those it has, at least one. Where the warm-up alone took longer, that
    is its time.
    """
    cells: dict[str, Cell] = {}
    runners: dict[str, _Runner] = {}
    for name, run in contestants.items():
        began = time.perf_counter()
        try:
            answer = run()
        except Cannot as reason:
            cells[name] = Cell(why_not=str(reason))
            continue
        warm = time.perf_counter() - began
        runners[name] = _Runner(run, answer, warm, [warm] if warm > patience else [])
        if SAMPLE < warm <= patience:
            # A first answer may do work that is kept: the second tells what the next ones take.
            runners[name].warm = seconds_of(run)
    gc.collect()
    for _ in range(repeats):
        for runner in runners.values():
            if runner.wants_more(repeats, patience):
                time.sleep(PAUSE)
                runner.measure()
    for name, runner in runners.items():
        wrong, remark = check(name, runner.answer)
        cells[name] = Cell.of(runner.measured, wrong=wrong, remark=remark)
    return {name: cells[name] for name in contestants}


def seconds_of(run: Callable[[], Any]) -> float:
    return timeit(run, number=1)


def turns(measures: Mapping[N, Callable[[], A]], repeats: int) -> dict[N, list[A]]:
    """What each measure finds, made in turns, since a machine's speed drifts."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(repeats)]
    return {name: [one[name] for one in rounds] for name in measures}


# ---- Processes


def new_process(**environment: str) -> ProcessPoolExecutor:
    """A new process that runs the functions submitted to it, one after the other."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with mock.patch.dict(os.environ, environment):
        pool.submit(os.getpid).result()
    return pool


def ask_in(process: ProcessPoolExecutor, function: Callable[..., A], *arguments: Any) -> A:
    """The result of a function that runs in a process."""
    return process.submit(function, *arguments).result()


def apart(function: Callable[..., A], *arguments: Any, **environment: str) -> A:
    """The result of a function that runs in a new process."""
    with new_process(**environment) as process:
        return ask_in(process, function, *arguments)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident(process: int | str = "self") -> dict[str, float]:
    """Bytes of a process in memory, now and at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return {
        name: 1024.0 * int(found.group(1)) if (found := re.search(rf"{name}:\s+(\d+) kB", status)) else 0.0
        for name in ("VmRSS", "VmHWM")
    }
