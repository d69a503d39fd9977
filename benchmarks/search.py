"""Questions to one layer: the best slots, under filters and by groups, sums by group, and what exact answers cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from typing import Any, Literal

import numpy as np

from benchmarks import oracle
from benchmarks.data import LAYER, Fresh, Groups
from benchmarks.harness import OURS, Cell, Check, K, Plan, Row, Section, Target, asked
from benchmarks.peers import Contest, contest, ours

PLAIN, PLAIN_TOP = f"{OURS}, no filter", f"{OURS}, top-10"
SCAN = "float32 scan"
BY = ("dataset", "label")
EACH = 500
EXACT, ABSOLUTE, PEERS = 1e-12, 1e-6, 1e-5
"""Shares of a group's sum of absolute scores that a sum may be off: signed sums add in float64, peers in float32."""
MANY, MANY_SECONDS = 200, 4.5
"""Queries of a whole set of passages, and the seconds that their absolute sums by position may take."""


def exactly(right: Mapping[str, oracle.Best] | oracle.Best) -> Check:
    """Of answers that promise to be exact; `right`: one for all contestants, or one for each."""

    def check(name: str, answer: Any) -> tuple[str, str]:
        expected = right if isinstance(right, oracle.Best) else right[name]
        return oracle.wrong_exactly(expected, answer.slots, answer.scores), ""

    return check


def nearly(own: Check, right: oracle.Best, *asked: Any) -> Check:
    """Ours by `own`, and those of peers, which may differ where float32 cannot tell."""

    def check(name: str, answer: Any) -> tuple[str, str]:
        return own(name, answer) if ours(name) else oracle.wrong_nearly(right, answer, *asked)

    return check


def topk(plan: Plan, section: Section) -> None:
    targets = {1: Target("at most", 0.5), 64: Target("at most", 0.35)}
    with contest(plan) as held:
        data = held.data
        (right,) = oracle.best(data.keys, data.queries, K)
        for count in plan.queries:
            queries, expected = data.queries[:count], right.first(count)
            cells = held.ask(
                "top",
                count,
                {OURS: partial(held.engine.topk, LAYER, queries, K)},
                methodcaller("top", queries, K, None),
                nearly(exactly(expected), expected, data.keys, queries),
            )
            section.compare_fastest(f"top-10, {asked(count)}", cells, targets.get(count))
        section.facts |= {f"loading the keys, {name}": f"{seconds:.3g} s" for name, seconds in held.build.items()}


def filtered(plan: Plan, section: Section) -> None:
    """Beside the same questions without a filter."""
    with contest(plan) as held:
        data = held.data
        masks = {
            "a random half": (data.coin, Target("at most", 1.1)),
            "one dataset, contiguous": (data.half, Target("at most", 0.6)),
            "one sample": (data.tiny, None),
        }
        plain, *each = oracle.best(data.keys, data.queries, K, [None, *(mask.stays for mask, _ in masks.values())])
        for (title, (mask, target)), masked in zip(masks.items(), each, strict=True):
            for count in plan.queries:
                queries, expected = data.queries[:count], masked.first(count)
                ask = partial(held.engine.topk, LAYER, queries, K)
                own = exactly({PLAIN: plain.first(count), OURS: expected})
                cells = held.ask(
                    f"top where {mask.where}",
                    count,
                    {OURS: partial(ask, where=mask.where), PLAIN: ask},
                    methodcaller("top", queries, K, mask),
                    nearly(own, expected, data.keys, queries, mask.stays),
                )
                question = f"top-10 under {title} ({mask.where}), {asked(count)}"
                section.compare(question, cells, PLAIN, target)


def grouped(plan: Plan, section: Section) -> None:
    """The 500 best slots of each dataset and label, as in the paper, beside our own plain top-10."""
    with contest(plan) as held:
        data, query = held.data, held.data.queries[:1]
        groups = data.groups(*BY)
        members = [groups.numbers == group for group in range(groups.count)]
        plain, *each = oracle.best(data.keys, query, EACH, [None, *members])
        slots, scores = [best.slots[0] for best in each], [best.scores[0] for best in each]
        right = oracle.Best(slots, scores, plain.tolerance.repeat(groups.count))
        top = oracle.Best([plain.slots[0][:K]], [plain.scores[0][:K]], plain.tolerance)

        def check(name: str, answer: Any) -> tuple[str, str]:
            if name == OURS:
                return oracle.wrong_exactly(right, answer.slots[0], answer.scores[0]), ""
            return exactly(top)(name, answer)

        cells = held.ask(
            "grouped",
            1,
            {
                OURS: partial(held.engine.topk, LAYER, query, EACH, by=BY),
                PLAIN_TOP: partial(held.engine.topk, LAYER, query, K),
            },
            methodcaller("top_of_groups", query[0], EACH, groups),
            nearly(check, right, data.keys, query.repeat(groups.count, axis=0)),
        )
        question = f"{EACH} best of each of {groups.count} groups, 1 query"
        section.compare(question, cells, PLAIN_TOP, Target("at most", 1.5))


def sums(plan: Plan, section: Section) -> None:
    with contest(plan) as held:
        data = held.data
        labels, positions = data.groups(*BY), data.groups("position")
        few, many = min(64, max(plan.queries)), min(MANY, max(plan.queries))
        (by_label,) = oracle.sums(data.keys, data.queries[:few], [labels])
        (by_position,) = oracle.sums(data.keys, data.queries[:many], [positions])
        cells = _sums(held, labels, by_label, 1, "dot")
        section.compare_fastest(
            "sums by dataset and label, 1 query, after the first", cells, Target("at least", 1000), times=True
        )
        section.alone("the first sums of an open memory", _first_sums(held, by_label))
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
        question = f"absolute sums by {places}, {asked(many)}"
        section.rows.append(Row(question, cells, target=target))
    section.notes.append(
        "The key sums of a grouping do not depend on the query, so dualform keeps them after the first question; the "
        "peers have no notion of them, and score every slot for each question."
    )


def _sums(held: Contest, groups: Groups, right: oracle.Sums, count: int, score: Literal["dot", "abs"]) -> Any:
    queries, absolute = held.data.queries[:count], score == "abs"
    expected = right.first(count)

    def check(name: str, answer: Any) -> tuple[str, str]:
        found, relative = (answer.sums, ABSOLUTE if absolute else EXACT) if ours(name) else (answer, PEERS)
        return oracle.wrong_sums(expected, absolute, found, relative), ""

    return held.ask(
        f"{score} sums by {groups.by}",
        count,
        {OURS: partial(held.engine.group_sum, LAYER, queries, groups.by, score=score)},
        lambda peer: peer.sums(queries, groups, absolute),
        check,
    )


def _first_sums(held: Contest, right: oracle.Sums) -> Cell:
    """On engines that were asked nothing yet, the keys already read from disk."""
    fresh, query = Fresh(held.plan.memory, held.plan.backend), held.data.queries[:1]
    measured, answer = fresh.measure(lambda engine: engine.group_sum(LAYER, query, BY), held.plan.few)
    return Cell.of(measured, wrong=oracle.wrong_sums(right.first(1), False, np.asarray(answer.sums), EXACT))
