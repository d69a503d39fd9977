"""The 500 best slots of each dataset and label, as in the paper, beside our own plain top-10."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import contest, oracle
from benchmarks.plan import Plan
from benchmarks.result import OURS, Section, Target
from benchmarks.sections.filtered import beside_plain
from benchmarks.sections.topk import K

BY = ("dataset", "label")
EACH = 500
PLAIN = f"{OURS}, top-10"


def run(plan: Plan) -> Section:
    section = Section("grouped", "The best of each group")
    with contest.contest(plan) as held:
        data, query = held.data, held.data.queries[:1]
        groups = data.groups(*BY)
        members = [groups.numbers == group for group in range(groups.count)]
        plain, *each = oracle.best(data.keys, query, EACH, [None, *members])
        right = oracle.Best(
            [best.slots[0] for best in each],
            [best.scores[0] for best in each],
            plain.tolerance.repeat(groups.count),
        )
        top = oracle.Best([plain.slots[0][:K]], [plain.scores[0][:K]], plain.tolerance)

        def check(name: str, answer: Any) -> tuple[str, str]:
            if name == PLAIN:
                return oracle.wrong_exactly(top, answer.slots, answer.scores), ""
            if name == OURS:
                return oracle.wrong_exactly(right, answer.slots[0], answer.scores[0]), ""
            return oracle.wrong_nearly(right, answer, data.keys, query.repeat(groups.count, axis=0))

        cells = held.ask(
            "grouped",
            1,
            {
                OURS: partial(held.engine.topk, data.layer, query, EACH, by=BY),
                PLAIN: partial(held.engine.topk, data.layer, query, K),
            },
            lambda peer: peer.top_of_groups(query[0], EACH, groups),
            check,
        )
        question = f"{EACH} best of each of {groups.count} groups, 1 query"
        section.rows.append(beside_plain(question, question, cells, PLAIN, Target("at most", 1.5)))
    return section
