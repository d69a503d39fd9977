"""Questions to one layer: the best slots, under filters and by groups, sums by group, and what exact answers cost; and
time and RAM of larger and larger memories.

Shapes: T slots.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from operator import methodcaller
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

import dualform
from benchmarks import oracle
from benchmarks.data import LAYER, Floats, Fresh, GeneratedKeys, Groups, read, write_memory
from benchmarks.harness import (
    OURS,
    Cell,
    K,
    Plan,
    Row,
    Section,
    Target,
    ask_in,
    asked,
    new_process,
    race,
    resident,
    turns,
)
from benchmarks.peers import Contest, contest

PLAIN, PLAIN_TOP = f"{OURS}, no filter", f"{OURS}, top-10"
BY = ("dataset", "label")
EACH = 500
EXACT, ABSOLUTE, PEERS = 1e-12, 1e-6, 1e-5
"""Shares of a group's sum of absolute scores that a sum may be off: signed sums add in float64, peers in float32."""
MANY, MANY_SECONDS = 200, 4.5
"""Queries of a whole set of passages, and the seconds that their absolute sums by position may take."""


def topk(plan: Plan, section: Section) -> None:
    targets = {1: Target("at most", 0.5), 64: Target("at most", 0.35)}
    with contest(plan) as held:
        data = held.data
        (right,) = oracle.best(data.keys, data.queries, K)
        for count in plan.queries:
            queries = data.queries[:count]
            cells = held.ask(
                "top",
                count,
                {OURS: partial(held.engine.topk, LAYER, queries, K)},
                methodcaller("top", queries, K, None),
                oracle.check_best({OURS: right.first(count)}, data.keys, queries),
            )
            section.compare_fastest(f"top-10, {asked(count)}", cells, targets.get(count))
        section.facts |= {f"loading the keys, {name}": f"{seconds:.3g} s" for name, seconds in held.build.items()}


def filtered(plan: Plan, section: Section) -> None:
    """Beside the same questions without a filter."""
    with contest(plan) as held:
        data = held.data
        kinds = (
            ("a random half", data.mask("coin"), Target("at most", 1.1)),
            ("one dataset, contiguous", data.mask("dataset"), Target("at most", 0.6)),
            ("one sample", data.mask("sample"), None),
        )
        plain, *each = oracle.best(data.keys, data.queries, K, [None, *(mask.stays for _, mask, _ in kinds)])
        for (title, mask, target), masked in zip(kinds, each, strict=True):
            for count in plan.queries:
                queries = data.queries[:count]
                ask = partial(held.engine.topk, LAYER, queries, K)
                right = {OURS: masked.first(count), PLAIN: plain.first(count)}
                cells = held.ask(
                    f"top where {mask.where}",
                    count,
                    {OURS: partial(ask, where=mask.where), PLAIN: ask},
                    methodcaller("top", queries, K, mask),
                    oracle.check_best(right, data.keys, queries, mask.stays),
                )
                question = f"top-10 under {title} ({mask.where}), {asked(count)}"
                section.compare(question, cells, PLAIN, target)


def grouped(plan: Plan, section: Section) -> None:
    """The 500 best slots of each dataset and label, as in the paper, beside our own plain top-10."""
    with contest(plan) as held:
        data, query, groups = held.data, held.data.queries[:1], held.data.groups(*BY)
        (top,) = oracle.best(data.keys, query, K)
        right = oracle.best_of_groups(data.keys, query, EACH, groups)
        cells = held.ask(
            "grouped",
            1,
            {
                OURS: partial(held.engine.topk, LAYER, query, EACH, by=BY),
                PLAIN_TOP: partial(held.engine.topk, LAYER, query, K),
            },
            methodcaller("top_of_groups", query[0], EACH, groups),
            oracle.check_best({OURS: right, PLAIN_TOP: top}, data.keys, query.repeat(groups.count, axis=0)),
        )
        question = f"{EACH} best of each of {groups.count} groups, 1 query"
        section.compare(question, cells, PLAIN_TOP, Target("at most", 1.5))


def sums(plan: Plan, section: Section) -> None:
    with contest(plan) as held:
        data = held.data
        few, many = min(64, max(plan.queries)), min(MANY, max(plan.queries))
        labels, positions = data.groups(*BY), data.groups("position")
        (by_label,) = oracle.sums(data.keys, data.queries[:few], [labels])
        (by_position,) = oracle.sums(data.keys, data.queries[:many], [positions])
        cells = _sums(held, labels, by_label, 1, "dot")
        section.compare_fastest(
            "sums by dataset and label, 1 query, after the first", cells, Target("at least", 1000), times=True
        )
        # On engines that were asked nothing yet, the keys already read from disk.
        fresh, ask = Fresh(plan.memory, plan.backend), methodcaller("group_sum", LAYER, data.queries[:1], BY)
        seconds, first = fresh.measure(ask, plan.few)
        wrong = oracle.wrong_sums(by_label.first(1), False, np.asarray(first.sums), EXACT)
        section.alone("the first sums of an open memory", Cell.of(seconds, wrong=wrong))
        places = f"{positions.count:,} positions"
        of_labels, of_positions = ("dataset and label", labels, by_label), (places, positions, by_position)
        asks: tuple[tuple[tuple[str, Groups, oracle.Sums], int, Literal["dot", "abs"]], ...] = (
            (of_labels, 1, "abs"),
            (of_labels, few, "abs"),
            (of_positions, 1, "dot"),
            (of_positions, 1, "abs"),
            (of_positions, few, "abs"),
        )
        for (by, groups, right), count, score in asks:
            word = "absolute" if score == "abs" else score
            cells = _sums(held, groups, right, count, score)
            section.compare_fastest(f"{word} sums by {by}, {asked(count)}", cells)
        cells = _sums(held, positions, by_position, many, "abs")
        target = Target("at most", MANY_SECONDS, "s") if many == MANY else None
        section.rows.append(Row(f"absolute sums by {places}, {asked(many)}", cells, target=target))
    section.notes.append(
        "The key sums of a grouping do not depend on the query, so dualform keeps them after the first question; the "
        "peers have no notion of them, and score every slot for each question."
    )


def _sums(held: Contest, groups: Groups, right: oracle.Sums, count: int, score: Literal["dot", "abs"]) -> Any:
    queries, absolute = held.data.queries[:count], score == "abs"

    def check(name: str, answer: Any) -> tuple[str, str]:
        found, relative = (answer.sums, ABSOLUTE if absolute else EXACT) if name == OURS else (answer, PEERS)
        return oracle.wrong_sums(right.first(count), absolute, found, relative), ""

    return held.ask(
        f"{score} sums by {groups.by}",
        count,
        {OURS: partial(held.engine.group_sum, LAYER, queries, groups.by, score=score)},
        methodcaller("sums", queries, groups, absolute),
        check,
    )


# ---- Growth

QUESTIONS = {"one": "top-10, 1 query", "few": "top-10, 64 queries", "sums": "sums by dataset and label"}


def growth(plan: Plan, section: Section) -> None:
    """Each size in its own process."""
    queries, wrong = np.load(plan.folder / "queries.npy")[:64], dict[int, dict[str, str]]()
    rounds: dict[int, Callable[[], dict[str, float]]] = {}
    with ExitStack() as stack:
        for slots in plan.growth:
            folder = plan.folder / f"grown-{slots}"
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            write_memory(folder, {LAYER: GeneratedKeys(plan.width)}, slots)
            process = stack.enter_context(new_process())
            wrong[slots] = _wrong(folder, queries, *ask_in(process, _begin, folder, plan.backend, queries))
            rounds[slots] = partial(ask_in, process, _round)
        found = turns(rounds, max(5, plan.repeats))
    for name, question in QUESTIONS.items():
        for slots, own in found.items():
            cell = Cell.of([one[name] for one in own], wrong=wrong[slots][name])
            section.alone(f"{question}, T = {slots:,}", cell)
    small, *_, large = plan.growth
    for name, question in QUESTIONS.items():
        medians = {slots: median(one[name] for one in own) for slots, own in found.items()}
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
    for slots, own in found.items():
        now, most = own[-1]["VmRSS"], max(one["VmHWM"] for one in own)
        section.facts[f"resident memory, T = {slots:,}"] = f"{now / 1e9:.2f} GB, at most {most / 1e9:.2f} GB"


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


def _round() -> dict[str, float]:
    """Seconds of each question, and what the process holds."""
    return {name: cell.seconds or 0.0 for name, cell in race(_questions, 1, 60.0).items()} | resident()


def steepest(seconds: dict[int, float]) -> float:
    """The largest time per slot of a size over that of a smaller one: 1 is linear growth, more is worse than that."""
    pairs = combinations(sorted(seconds), 2)
    return max((seconds[large] / large) / (seconds[small] / small) for small, large in pairs)
