"""Top-10 over all slots."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import Any

from benchmarks import contest, oracle
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target, fastest_peer

K = 10
TARGETS = {1: Target("at most", 0.5), 64: Target("at most", 0.35)}


def run(plan: Plan) -> Section:
    section = Section("topk", "Top-10")
    with contest.contest(plan) as held:
        data = held.data
        right = oracle.best(data.keys, data.queries, K)[0]
        for count in plan.queries:
            queries = data.queries[:count]
            expected = first(right, count)

            def check(name: str, answer: Any, queries: Any = queries, expected: Any = expected) -> tuple[str, str]:
                if contest.ours(name):
                    return oracle.wrong_exactly(expected, answer.slots, answer.scores), ""
                return oracle.wrong_nearly(expected, answer, data.keys, queries)

            cells = held.ask(
                "top",
                count,
                {OURS: partial(held.engine.topk, data.layer, queries, K)},
                methodcaller("top", queries, K, None),
                check,
            )
            section.rows.append(against_peers(f"top-10, {asked(count)}", asked(count), cells, TARGETS.get(count)))
        section.build = held.build
    return section


def first(right: oracle.Best, count: int) -> oracle.Best:
    """The right answer to the first queries."""
    return oracle.Best(right.slots[:count], right.scores[:count], right.tolerance[:count])


def asked(count: int) -> str:
    return "1 query" if count == 1 else f"{count:,} queries"


def against_peers(question: str, short: str, cells: Any, target: Target | None) -> Row:
    """Our time over the fastest peer's."""
    fastest = fastest_peer(cells)
    seconds = cells[OURS].seconds
    if fastest is None or seconds is None:
        return Row(question, cells, target=target, short=short)
    name, beside = fastest
    return Row(question, cells, f"fastest peer: {name}", beside, seconds / beside, target, short)
