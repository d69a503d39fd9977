"""Trainings with the recorder on, until their records are durable, beside the same trainings without it.

They run on one thread, on two and on four, in a process of its own for each number and repeat. The numbers take turns,
and so do the kinds within a process, in the opposite order every second time: what slows the machine for a while falls
on all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target

STUDY = {
    "values": ("training, keys and values recorded", Target("at most", 1.15)),
    "keys": ("training, only keys recorded", Target("at most", 1.05)),
}
GPT, GPT_TARGET = "training of a small GPT (4 blocks, d = 256), keys and values recorded", Target("at most", 1.3)
SMALL = {
    "toy": "what recording adds to a step of a toy transformer (2 blocks, d = 32)",
    "mlp": "what recording adds to a step of a tiny MLP (64-32-10)",
}
REPEATS = 3

Measured = dict[str, dict[str, dict[str, float]]]
"""By training and kind, seconds, steps and bytes of one process."""


def run(plan: Plan) -> Section:
    section = Section("recording", "Recording")
    folder = plan.folder / "recording"
    folder.mkdir()
    repeats = 2 if plan.quick else REPEATS
    measured: dict[int, list[Measured]] = {threads: [] for threads in plan.threads}
    for repeat in range(repeats):
        for threads in plan.threads if repeat % 2 == 0 else plan.threads[::-1]:
            measured[threads].append(_process(plan, threads, "backwards" if repeat % 2 else "forwards"))
    by_threads = [list(_rows(found, threads)) for threads, found in measured.items()]
    section.rows += [row for rows in zip(*by_threads, strict=True) for row in rows]
    if plan.images is None:
        why = "needs MNIST and Fashion-MNIST: name their folder with --data, or set DUALFORM_DATA"
        section.rows += [Row(question, {OURS: Cell(why_not=why)}, target=target) for question, target in STUDY.values()]
    else:
        _written(section, measured[plan.threads[-1]])
    section.notes.append(
        f"Whole trainings, from the recorder's opening until its record is durable, {repeats} of each kind by turns: "
        "a time is the median, a ratio that of the repeats' own ratios, with the least and the greatest of them. Torch "
        "is held to so many threads (OMP_NUM_THREADS), and the recorder's writer has its own; more threads than cores "
        "wait for each other. The training is the continual study's; the GPT and the toy transformer take 512 tokens a "
        "step, the MLP 32 rows, under AdamW."
    )
    return section


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _process(plan: Plan, threads: int, order: str) -> Measured:
    """All trainings, once each."""
    arguments = [str(plan.folder / "recording"), str(plan.steps), "0.3" if plan.quick else "1", order]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_process", *arguments, *([str(plan.images)] if plan.images else [])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    found: Measured = json.loads(done.stdout)
    return found


def _rows(found: list[Measured], threads: int) -> Iterator[Row]:
    on = "1 thread" if threads == 1 else f"{threads} threads"
    if threads > cores():
        on += f" on {cores()} cores"
    if "study" in found[0]:
        for kind, (question, target) in STUDY.items():
            yield _compared(found, "study", kind, question, on, target)
    yield _compared(found, "gpt", "values", GPT, on, GPT_TARGET)
    for name, question in SMALL.items():
        yield _added(found, name, question, on)


def _compared(found: list[Measured], name: str, kind: str, question: str, on: str, target: Target) -> Row:
    ratios = [one[name][kind]["seconds"] / one[name]["unrecorded"]["seconds"] for one in found]
    steps = round(found[0][name][kind]["steps"])
    return Row(
        f"{question}, {steps:,} steps, {on}",
        {OURS: _cell([one[name][kind]["seconds"] for one in found])},
        "the same training, unrecorded",
        median(one[name]["unrecorded"]["seconds"] for one in found),
        median(ratios),
        target,
        kind,
        ratios=(min(ratios), max(ratios)),
    )


def _added(found: list[Measured], name: str, question: str, on: str) -> Row:
    """Seconds more that a step takes: of small networks the ratio says little."""

    def step(kind: str) -> Callable[[Measured], float]:
        return lambda one: one[name][kind]["seconds"] / one[name][kind]["steps"]

    recorded, unrecorded = list(map(step("values"), found)), list(map(step("unrecorded"), found))
    return Row(
        f"{question}, {on}",
        {OURS: _cell([a - b for a, b in zip(recorded, unrecorded, strict=True)])},
        "the same step, unrecorded",
        median(unrecorded),
    )


def _cell(seconds: list[float]) -> Cell:
    return Cell(median(seconds), min(seconds), len(seconds), worst=max(seconds))


def _written(section: Section, found: list[Measured]) -> None:
    for kind, (question, _) in STUDY.items():
        size, rates = found[0]["study"][kind]["bytes"], [one["study"][kind] for one in found]
        rate = median(one["bytes"] / one["seconds"] for one in rates)
        section.numbers[f"{kind}, byte/s"] = rate
        section.facts[f"{question}: written"] = f"{size / 1e9:.2f} GB, {rate / 1e6:,.0f} MB/s"
