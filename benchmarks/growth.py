"""Time and RAM of larger and larger memories, each in its own process, in turns; and the keys read once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dualform
from benchmarks import oracle
from benchmarks.data import LAYER, Floats, GeneratedKeys, load, read, write_memory
from benchmarks.harness import OURS, Cell, K, Plan, Row, Section, Target, new_process, race, resident

BY = ("dataset", "label")
QUESTIONS = {"one": "top-10, 1 query", "few": "top-10, 64 queries", "sums": "sums by dataset and label"}
EXACT = 1e-12
"""Of a group's sum of absolute scores: signed sums add in float64."""


def growth(plan: Plan, section: Section) -> None:
    folders = {slots: plan.folder / f"grown-{slots}" for slots in plan.growth}
    queries = np.load(plan.folder / "queries.npy")[:64]
    try:
        for slots, folder in folders.items():
            write_memory(folder, GeneratedKeys(plan.width), slots)
        wrong, rounds = _measure(plan, folders, queries)
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    seconds = {name: {slots: [one[name] for one in rounds[slots]] for slots in folders} for name in QUESTIONS}
    for name, question in QUESTIONS.items():
        for slots, own in seconds[name].items():
            section.alone(f"{question}, T = {slots:,}", Cell.of(own, wrong=wrong[slots][name]))
    small, *_, large = plan.growth
    for name, question in QUESTIONS.items():
        medians = {slots: Cell.of(own).seconds or 0.0 for slots, own in seconds[name].items()}
        beside, reference = "the smallest memory", medians[small]
        if name != "sums":
            beside, reference = "linear growth (steepest pair of sizes)", medians[large] / steepest(medians)
        section.compare(
            f"growth of {'cached ' if name == 'sums' else ''}{question}, T = {small:,} to {large:,}",
            {OURS: Cell(medians[large], wrong="; ".join(filter(None, (own[name] for own in wrong.values()))))},
            beside,
            Target("at most", 1.1),
            seconds=reference,
        )
    for slots, found in rounds.items():
        now, most = found[-1]["VmRSS"], max(one["VmHWM"] for one in found)
        section.facts[f"resident memory, T = {slots:,}"] = f"{now / 1e9:.2f} GB, at most {most / 1e9:.2f} GB"


def _measure(
    plan: Plan, folders: dict[int, Path], queries: Floats
) -> tuple[dict[int, dict[str, str]], dict[int, list[dict[str, float]]]]:
    """By size, errors in its answers, and the figures of each round.

    The sizes take turns, so that a slow spell meets all of them.
    """
    wrong: dict[int, dict[str, str]] = {}
    rounds: dict[int, list[dict[str, float]]] = {slots: [] for slots in folders}
    with ExitStack() as stack:
        processes = {slots: stack.enter_context(new_process()) for slots in folders}
        for slots, folder in folders.items():
            best, sums = processes[slots].submit(_begin, folder, plan.backend, queries).result()
            wrong[slots] = _wrong(folder, queries, best, sums)
        for _ in range(max(5, plan.repeats)):
            for slots, process in processes.items():
                rounds[slots].append(process.submit(_round, 1).result())
    return wrong, rounds


def _wrong(folder: Path, queries: Floats, best: dualform.Hits, sums: dualform.GroupSums) -> dict[str, str]:
    """Errors in the answers of one size, by question; "" for none."""
    data = read(folder, queries)
    (top,), (totals,) = oracle.best(data.keys, queries, K), oracle.sums(data.keys, queries[:1], [data.groups(*BY)])
    found = oracle.wrong_exactly(top, best.slots, best.scores)
    return {"one": found, "few": found, "sums": oracle.wrong_sums(totals, False, np.asarray(sums.sums), EXACT)}


_questions: dict[str, Callable[[], Any]] = {}
"""The questions to the memory that this process has opened."""


def _begin(memory: Path, backend: str | None, queries: Floats) -> tuple[dualform.Hits, dualform.GroupSums]:
    """Opens a memory for the rounds to come, and answers with many queries and by groups."""
    engine = dualform.open(memory, backend=backend)
    _questions["one"] = partial(engine.topk, LAYER, queries[:1], K)
    _questions["few"] = partial(engine.topk, LAYER, queries, K)
    _questions["sums"] = partial(engine.group_sum, LAYER, queries[:1], BY)
    _, few, sums = (ask() for ask in _questions.values())
    return few, sums


def _round(repeats: int) -> dict[str, float]:
    """Seconds of each question, and what the process holds."""
    cells = race(_questions, repeats, 60.0)
    return {name: cell.seconds or 0.0 for name, cell in cells.items()} | resident()


def steepest(seconds: dict[int, float]) -> float:
    """The largest time per slot of a size over that of a smaller one: 1 is linear growth, more is worse than that."""
    pairs = combinations(sorted(seconds), 2)
    return max((seconds[large] / large) / (seconds[small] / small) for small, large in pairs)


def floor(plan: Plan, section: Section) -> None:
    """The machine's memory bus: the keys read once by NumPy and torch."""
    data = load(plan)
    keys, query = torch.from_numpy(data.keys), torch.from_numpy(data.queries[0])
    readers: dict[str, Callable[[], Any]] = {
        "NumPy sum": data.keys.sum,
        "torch sum": keys.sum,
        "torch matrix-vector": lambda: keys @ query,
        "NumPy matrix-vector": lambda: data.keys @ data.queries[0],
    }
    cells = race(readers, plan.repeats, plan.patience)
    section.rows.append(Row("the keys read once", cells))
    rate = data.keys.nbytes / min(cell.seconds for cell in cells.values() if cell.seconds is not None)
    section.facts["reading the keys once"] = f"{data.keys.nbytes / 1e9:.2f} GB, {rate / 1e9:.1f} GB/s"
