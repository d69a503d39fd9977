"""A long training of small steps with the recorder on: neither its steps nor its process may grow."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import networks
from benchmarks.memory_process import resident
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from dualform import Recorder

ROWS, SAMPLES = 4, 4096
"""Of a batch, and of the data."""
GROWN_SECONDS, GROWN_BYTES = 0.3e-3, 64e6
"""By how much a step and the process may grow."""


def run(plan: Plan) -> Section:
    section = Section("long_training", "A long training of small steps")
    steps, window = (4_000, 500) if plan.quick else (100_000, 5_000)
    seconds, held = _windows(plan.folder / "long_training", steps, window)
    first, last, before, most = seconds[0], seconds[-1], held[0], max(held)
    named = f"{steps:,} steps of {ROWS} rows"
    section.rows = [
        Row(
            f"growth of a step's time, {named}: a step of the last {window:,}",
            {OURS: Cell(last, min(seconds), len(seconds))},
            f"a step of the first {window:,}, and 0.3 ms",
            first + GROWN_SECONDS,
            last / (first + GROWN_SECONDS),
            Target("at most", 1),
            "time",
        ),
        Row(
            f"growth of memory, {named}: most resident where a window of {window:,} ends, after the first",
            {OURS: Cell(bytes=most - before)},
            target=Target("at most", GROWN_BYTES, "bytes"),
            short="memory",
        ),
    ]
    for number in (0, len(seconds) // 2, len(seconds) - 1):
        after = f"{(number + 1) * window:,} steps"
        section.facts[f"after {after}: a step, resident memory"] = (
            f"{seconds[number] * 1e3:.2f} ms, {held[number] / 1e6:,.0f} MB"
        )
    section.numbers = {"first, s": first, "last, s": last, "first, bytes": before, "most, bytes": most}
    section.notes.append(
        f"Two linear layers under AdamW, keys and values recorded, one thread of torch; samples are drawn from "
        f"{SAMPLES:,}. Seconds are medians over windows of {window:,} steps; resident memory is of where one ends: "
        "what a commit takes and lets go again, every few thousand steps, comes on top."
    )
    return section


def _windows(memory: Path, steps: int, window: int) -> tuple[list[float], list[float]]:
    """Of each window of a recorded training: the median seconds of a step, and the bytes resident at its end."""
    seconds, held, of_window = list[float](), list[float](), list[float]()
    for took in recorded_steps(memory, steps):
        of_window.append(took)
        if len(of_window) == window:
            seconds.append(median(of_window))
            held.append(resident()["VmRSS"])
            of_window.clear()
    return seconds, held


def recorded_steps(memory: Path, steps: int) -> Generator[float, None, None]:
    """Trains with one thread of torch, recorded into `memory`, which is gone in the end: the seconds of each step."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 64, generator=generator)
    labels = torch.randint(0, networks.GROUPS, (SAMPLES,), generator=generator)
    model, threads = networks.small_perceptron(), torch.get_num_threads()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.set_num_threads(1)
    try:
        with Recorder(model, optimizer, memory, quiet=True) as recorder:
            for _ in range(steps):
                began = perf_counter()
                chosen = torch.randint(0, SAMPLES, (ROWS,), generator=generator)
                with recorder.step(label=labels[chosen], sample=chosen):
                    _update(model, optimizer, inputs[chosen], labels[chosen])
                yield perf_counter() - began
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(memory, ignore_errors=True)


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    torch.autograd.backward(loss)
    optimizer.step()
