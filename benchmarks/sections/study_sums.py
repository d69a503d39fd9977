"""Signed and absolute sums of a query set's queries at every layer of the study, beside one matrix product.

Shapes: n queries, R distinct keys of layer 0, d.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import oracle
from benchmarks.data import Groups
from benchmarks.engines import Fresh
from benchmarks.keys import read_study
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing, race
from dualform import QuerySetExamples
from dualform.query.engine import Engine
from dualform.store.snapshot import Snapshot

BY = ("dataset", "label")
CHECKED = 2
"""Queries whose sums are compared with the float64 oracle."""
BLOCK = 8192
SCORES: tuple[Literal["dot", "abs"], ...] = ("dot", "abs")
TOLERANCE = {"dot": 1e-12, "abs": 1e-6}
TARGET = Target("at most", 2)
FIRST_STEPS, FEWER = 300, 1000
"""Steps and queries of the sums that a program with all scores at hand would be asked for."""
FIRST_STEPS_TARGET = Target("at most", 0.7, "s")


def run(plan: Plan) -> Section:
    section = Section("study_sums", "Sums of the study's test queries")
    question = f"dot and absolute sums of {plan.study_queries:,} test queries, all layers"
    if plan.study is None or plan.quick:
        why = "needs a whole recorded continual study" if plan.study is None else "not in a quick run"
        section.rows = [Row(question, {OURS: Cell(why_not=why)}, target=TARGET)]
        return section
    memory = read_study(plan.study)
    query_set = next(iter(memory.query_sets))
    fresh = Fresh(plan.study, plan.backend)
    fresh.read()
    with fresh.engine() as engine:
        before = _product(engine, memory, query_set, plan.study_queries)
        seconds, answers = _ours(engine, query_set, plan.study_queries, section)
        after = _product(engine, memory, query_set, plan.study_queries)
        first_steps = _first_steps(engine, memory, query_set, plan)
    product, whole = Timing.of([before, after]), sum(seconds.values())
    wrong = _wrong(memory, query_set, answers)
    section.rows.append(
        Row(
            question,
            {OURS: Cell(whole, whole, 1, wrong=wrong)},
            "one float32 product with layer 0's distinct keys",
            product.seconds,
            whole / product.seconds,
            TARGET,
            "both, all layers",
        )
    )
    section.rows.append(first_steps)
    section.notes.append(
        "Layer 0 holds each image once, the other layers a key for every slot: what the product with the keys of all "
        "layers would take stands above for comparison. After a relu neither keys nor queries are negative, so the "
        "absolute sums of those layers are their dot sums; where signs differ, absolute sums need every score."
    )
    _all_products(section, memory, plan.study_queries, product.seconds)
    return section


def _ours(
    engine: Engine, query_set: str, count: int, section: Section
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], NDArray[np.float64]]]:
    """Seconds of each layer and kind of sum, and the first queries' sums."""
    seconds: dict[tuple[str, str], float] = {}
    answers: dict[tuple[str, str], NDArray[np.float64]] = {}
    queries = QuerySetExamples(query_set, tuple(range(count)))
    for layer in engine.info().layers:
        for score in SCORES:
            began = time.perf_counter()
            found = engine.group_sum(layer.name, queries, BY, score=score)
            seconds[layer.name, score] = took = time.perf_counter() - began
            answers[layer.name, score] = found.sums[:CHECKED]
            section.facts[f"{layer.name}, {'absolute' if score == 'abs' else score}"] = f"{took:.2f} s"
            section.numbers[f"{layer.name}, {score}, seconds"] = took
    return seconds, answers


def _first_steps(engine: Engine, memory: Snapshot, query_set: str, plan: Plan) -> Row:
    """Absolute sums of the first steps' slots at layer 0 by label, beside NumPy with their keys as one matrix."""
    layer = next(iter(memory.layers.values()))
    queries = memory.query_set(query_set).queries(layer.name)[:FEWER]
    numbers = np.asarray(memory.column(layer.space, "label"))
    slots = np.flatnonzero(np.asarray(memory.column(layer.space, "step")) < FIRST_STEPS)
    keys, members = (
        memory.keys(layer.name).of_entries(slots),
        np.eye(numbers.max() + 1, dtype=np.float32)[numbers[slots]],
    )

    def plain() -> NDArray[np.float64]:
        sums = np.zeros((len(queries), members.shape[1]))
        for start in range(0, len(keys), BLOCK):
            scores = queries @ keys[start : start + BLOCK].T
            sums += np.abs(scores, out=scores) @ members[start : start + BLOCK]
        return sums

    def ours() -> NDArray[np.float64]:
        return engine.group_sum(layer.name, queries, "label", f"step < {FIRST_STEPS}", score="abs").sums

    ours()
    ran = race({OURS: ours, "NumPy": plain}, plan.repeats, plan.patience)
    mine, beside = ran[OURS].timing, ran["NumPy"].timing
    assert mine is not None, "neither waits for anything"
    assert beside is not None
    scores = np.abs(queries[:CHECKED].astype(np.float64) @ keys.T.astype(np.float64))
    right = np.stack([np.bincount(numbers[slots], row) for row in scores]).astype(np.float64)
    wrong = oracle.wrong_sums(oracle.Sums(right, right), True, ran[OURS].answer[:CHECKED], TOLERANCE["abs"])
    return Row(
        f"absolute sums of {FEWER:,} test queries at layer 0 by label, {len(slots):,} slots",
        {
            OURS: Cell(mine.seconds, mine.best, mine.repeats, wrong=wrong),
            "NumPy, float32": Cell(beside.seconds, beside.best, beside.repeats),
        },
        target=FIRST_STEPS_TARGET if len(queries) == FEWER else None,
        short="absolute, layer 0, first steps",
    )


def _product(engine: Engine, memory: Snapshot, query_set: str, count: int) -> float:
    """Seconds of the queries times layer 0's distinct keys in float32, block by block, the scores dropped."""
    layer = next(iter(memory.layers))
    asked = engine.query_set(query_set, layer).queries
    assert asked is not None
    queries = torch.from_numpy(np.array(asked[:count]))
    scores = torch.empty((len(queries), BLOCK))
    took = 0.0
    for _, block in memory.keys(layer).blocks(BLOCK):
        keys = torch.from_numpy(np.array(block))
        began = time.perf_counter()
        torch.matmul(queries, keys.T, out=scores[:, : len(keys)] if len(keys) == BLOCK else None)
        took += time.perf_counter() - began
    return took


def _all_products(section: Section, memory: Snapshot, count: int, product: float) -> None:
    """What the product would take with the keys of all layers, by its size."""
    sizes = [memory.keys(layer.name).rows * layer.d_in for layer in memory.layers.values()]
    share = sum(sizes) / sizes[0]
    section.facts["numbers in the keys of all layers, over those of layer 0"] = f"{share:.1f}"
    section.facts["so the products with all keys in float32 would take about"] = f"{share * product:.1f} s"
    section.numbers["all products, seconds"] = share * product


def _wrong(memory: Snapshot, query_set: str, answers: dict[tuple[str, str], NDArray[np.float64]]) -> str:
    for layer in memory.layers.values():
        queries = memory.query_set(query_set).queries(layer.name)[:CHECKED]
        groups = groups_of(memory, layer.space)
        right = _sums(memory, layer.name, queries, groups)
        for score in SCORES:
            found = answers[layer.name, score]
            if wrong := oracle.wrong_sums(right, score == "abs", found, TOLERANCE[score]):
                return f"{layer.name}, {score}: {wrong}"
    return ""


def groups_of(memory: Snapshot, space: str) -> Groups:
    codes: Any = 0
    for name in BY:
        values, own = np.unique(np.asarray(memory.column(space, name)), return_inverse=True)
        codes = codes * len(values) + own
    present, numbers = np.unique(codes, return_inverse=True)
    return Groups(BY, numbers, len(present))


def _sums(memory: Snapshot, layer: str, queries: NDArray[np.float32], groups: Groups) -> oracle.Sums:
    """The oracle's sums, slot block by slot block."""
    keys = memory.keys(layer)
    found = oracle.Sums(np.zeros((len(queries), groups.count)), np.zeros((len(queries), groups.count)))
    for start in range(0, keys.entries, BLOCK):
        stop = min(start + BLOCK, keys.entries)
        part = Groups(groups.by, groups.numbers[start:stop], groups.count)
        block = oracle.sums(keys.entry_block(start, stop), queries, [part])[0]
        found.signed[:] += block.signed
        found.absolute[:] += block.absolute
    return found
