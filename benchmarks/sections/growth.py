"""Time and memory of ever larger memories, each in a process of its own, in turns."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import oracle
from benchmarks.data import read, source
from benchmarks.memory_process import BY
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing
from benchmarks.written import write_memory

SIGNED = 1e-12
ONE, FEW, SUMS = "one", "few", "sums"
QUESTIONS = {ONE: "top-10, 1 query", FEW: "top-10, 64 queries", SUMS: "sums by dataset and label"}


def run(plan: Plan) -> Section:
    section = Section("growth", "Growth")
    folders = {slots: plan.folder / f"grown-{slots}" for slots in plan.growth}
    try:
        for slots, folder in folders.items():
            folder.mkdir()
            write_memory(folder / "memory", source(plan), slots)
        rounds = _measure(plan, folders)
        wrong = {slots: _wrong(plan, folder) for slots, folder in folders.items()}
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    for name, question in QUESTIONS.items():
        section.rows.extend(_rows(name, question, rounds, wrong))
    _compare(section, rounds)
    return section


def _measure(plan: Plan, folders: dict[int, Path]) -> dict[int, list[dict[str, float]]]:
    """By size, what each round measured. The sizes take turns, so that a slow spell meets all of them."""
    rounds: dict[int, list[dict[str, float]]] = {slots: [] for slots in folders}
    with ExitStack() as stack:
        processes = {
            slots: stack.enter_context(Growing([str(folder / "memory"), str(folder), *_backend(plan)]))
            for slots, folder in folders.items()
        }
        for process in processes.values():
            process.line()
        for _ in range(max(5, plan.repeats)):
            for slots, process in processes.items():
                rounds[slots].append(json.loads(process.ask()))
    return rounds


def _backend(plan: Plan) -> list[str]:
    return [] if plan.backend is None else [plan.backend]


class Growing:
    """A memory_process."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that asks ended with code {self._process.wait()}")
        return line

    def ask(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return self.line()

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _wrong(plan: Plan, folder: Path) -> dict[str, str]:
    """What is wrong with the answers of one size, by question."""
    answers = np.load(folder / "answers.npz")
    queries = np.load(plan.folder / "queries.npy")[: len(answers["slots"])]
    data = read(folder / "memory", queries)
    top = oracle.best(data.keys, queries, answers["slots"].shape[1])[0]
    sums = oracle.sums(data.keys, queries[:1], [data.groups(*BY)])[0]
    found = oracle.wrong_exactly(top, list(answers["slots"]), list(answers["scores"]))
    return {ONE: found, FEW: found, SUMS: oracle.wrong_sums(sums, False, answers["sums"], SIGNED)}


def _rows(
    name: str, question: str, rounds: dict[int, list[dict[str, float]]], wrong: dict[int, dict[str, str]]
) -> list[Row]:
    rows = []
    for slots, measured in rounds.items():
        timing = Timing.of([one[name] for one in measured])
        cell = Cell(timing.seconds, timing.best, timing.repeats, wrong=wrong[slots][name])
        rows.append(Row(f"{question}, T = {slots:,}", {OURS: cell}, short=f"T = {slots:,}"))
    return rows


def _compare(section: Section, rounds: dict[int, list[dict[str, float]]]) -> None:
    cells = {row.question: row.ours for row in section.rows}
    median = {
        name: {slots: Timing.of([one[name] for one in measured]).seconds for slots, measured in rounds.items()}
        for name in QUESTIONS
    }
    wrong = {
        name: "; ".join(cell.wrong for question, cell in cells.items() if question.startswith(title) and cell.wrong)
        for name, title in QUESTIONS.items()
    }
    sizes = list(rounds)
    for name in (ONE, FEW):
        worst = steepest(median[name])
        slots = sizes[-1]
        section.rows.append(
            Row(
                f"growth of {QUESTIONS[name]}, T = {sizes[0]:,} to {slots:,}",
                {OURS: Cell(median[name][slots], wrong=wrong[name])},
                "linear growth (steepest pair of sizes)",
                median[name][slots] / worst,
                worst,
                Target("at most", 1.1),
            )
        )
    flat = median[SUMS][sizes[-1]] / median[SUMS][sizes[0]]
    section.rows.append(
        Row(
            f"growth of cached {QUESTIONS[SUMS]}, T = {sizes[0]:,} to {sizes[-1]:,}",
            {OURS: Cell(median[SUMS][sizes[-1]], wrong=wrong[SUMS])},
            "the smallest memory",
            median[SUMS][sizes[0]],
            flat,
            Target("at most", 1.1),
        )
    )
    for slots, measured in rounds.items():
        now, most = measured[-1]["VmRSS"], max(one["VmHWM"] for one in measured)
        section.numbers[f"resident bytes, T = {slots}"] = now
        section.numbers[f"peak resident bytes, T = {slots}"] = most
        section.facts[f"resident memory, T = {slots:,}"] = f"{now / 1e9:.2f} GB, at most {most / 1e9:.2f} GB"


def steepest(seconds: dict[int, float]) -> float:
    """The largest time per slot of a size over that of a smaller one: 1 is linear growth, more is worse than that."""
    pairs = combinations(sorted(seconds), 2)
    return max((seconds[large] / large) / (seconds[small] / small) for small, large in pairs)
