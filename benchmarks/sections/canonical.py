"""What it costs that answers are canonical, and how many questions the screen could not decide."""

from __future__ import annotations

import time

import dualform
from benchmarks import oracle
from benchmarks.data import load
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.sections.topk import K, asked, first
from benchmarks.timing import PAUSE, Timing


def run(plan: Plan) -> Section:
    section = Section("canonical", "Canonical answers")
    data = load(plan)
    right = oracle.best(data.keys, data.queries, K)[0]
    with dualform.open(plan.memory, backend=plan.backend) as engine:
        for count in plan.queries:
            queries = data.queries[:count]
            answer = engine.topk(data.layer, queries, K)
            wrong = oracle.wrong_exactly(first(right, count), answer.slots, answer.scores)
            whole, bare = [], []
            candidates = engine.tally.candidates
            # What rescoring takes is small beside a machine's noise, so it is many times measured.
            for _ in range(3 * plan.repeats):
                time.sleep(PAUSE)
                rescoring, began = engine.tally.rescoring_seconds, time.perf_counter()
                engine.topk(data.layer, queries, K)
                whole.append(time.perf_counter() - began)
                bare.append(whole[-1] - (engine.tally.rescoring_seconds - rescoring))
            timing, without = Timing.of(whole), Timing.of(bare)
            cell = Cell(timing.seconds, timing.best, timing.repeats, wrong=wrong)
            question = f"top-10, {asked(count)}, with its rescoring"
            ratio = timing.seconds / without.seconds
            section.rows.append(
                Row(
                    question,
                    {OURS: cell},
                    "without the rescoring",
                    without.seconds,
                    ratio,
                    Target("at most", 1.1),
                    asked(count),
                )
            )
            rescored = (engine.tally.candidates - candidates) / (count * len(whole))
            section.facts[f"rows rescored a query, {asked(count)}"] = f"{rescored:.1f}"
        asked_in_all, fallbacks = engine.tally.queries, engine.tally.fallbacks
    section.numbers |= {"queries": asked_in_all, "fallbacks": fallbacks}
    section.facts["questions that needed the fall-back"] = (
        f"{fallbacks:,} of {asked_in_all:,} queries ({fallbacks / asked_in_all:.2%})"
    )
    return section
