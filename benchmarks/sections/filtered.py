"""Top-10 under a filter, beside the same questions without one."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import Any

from benchmarks import contest, oracle
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target
from benchmarks.sections.topk import K, asked, first

PLAIN = f"{OURS}, no filter"


def run(plan: Plan) -> Section:
    section = Section("filtered", "Top-10 under a filter")
    with contest.contest(plan) as held:
        data = held.data
        masks = {
            "a random half": (data.coin, Target("at most", 1.1)),
            "one dataset, contiguous": (data.half, Target("at most", 0.6)),
            "one sample": (data.tiny, None),
        }
        right = oracle.best(data.keys, data.queries, K, [None, *(mask.stays for mask, _ in masks.values())])
        for (title, (mask, target)), masked in zip(masks.items(), right[1:], strict=True):
            for count in plan.queries:
                queries = data.queries[:count]
                expected = {PLAIN: first(right[0], count), OURS: first(masked, count)}

                def check(
                    name: str, answer: Any, queries: Any = queries, expected: Any = expected, mask: Any = mask
                ) -> tuple[str, str]:
                    if contest.ours(name):
                        return oracle.wrong_exactly(expected[name], answer.slots, answer.scores), ""
                    return oracle.wrong_nearly(expected[OURS], answer, data.keys, queries, mask.stays)

                ask = partial(held.engine.topk, data.layer, queries, K)
                cells = held.ask(
                    f"top where {mask.where}",
                    count,
                    {OURS: partial(ask, where=mask.where), PLAIN: ask},
                    methodcaller("top", queries, K, mask),
                    check,
                )
                question = f"top-10 under {title} ({mask.where}), {asked(count)}"
                section.rows.append(beside_plain(question, f"{title}, {count:,}", cells, PLAIN, target))
    return section


def beside_plain(question: str, short: str, cells: Any, plain: str, target: Target | None) -> Row:
    """Our time over our own for a plainer question."""
    seconds, beside = cells[OURS].seconds, cells[plain].seconds
    return Row(question, cells, plain, beside, seconds / beside, target, short)
