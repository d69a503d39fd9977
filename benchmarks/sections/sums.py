"""Sums of scores, and of their absolute values, by group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import dualform
from benchmarks import contest, oracle
from benchmarks.contest import Contest
from benchmarks.data import Groups
from benchmarks.engines import Fresh
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target, fastest_peer
from benchmarks.sections.topk import against_peers, asked
from benchmarks.timing import Timing

BY = ("dataset", "label")
EXACT = 1e-12
"""Of a group's sum of absolute scores: signed sums add in float64."""
ABSOLUTE = 1e-6
PEERS = 1e-5
"""What adding float32 scores may be off."""
MANY, MANY_SECONDS = 200, 4.5
"""Queries of a whole set of passages, and the seconds that their absolute sums by position may take."""


def run(plan: Plan) -> Section:
    section = Section("sums", "Sums by group")
    with contest.contest(plan) as held:
        data = held.data
        labels, positions = data.groups(*BY), data.groups("position")
        few, many = min(64, plan.most_queries), min(MANY, plan.most_queries)
        by_label = oracle.sums(data.keys, data.queries[:few], [labels])[0]
        by_position = oracle.sums(data.keys, data.queries[:many], [positions])[0]
        section.rows.append(_signed(held, labels, by_label))
        first, fresh = _first_time(held, by_label)
        section.rows.append(Row("the first sums of an open memory", {OURS: first}, fresh, short="dot, first time"))
        for count in (1, few):
            section.rows.append(_row(held, labels, by_label, count, "abs", "dataset and label"))
        section.rows.append(_row(held, positions, by_position, 1, "dot", f"{positions.count:,} positions"))
        for count in (1, few):
            section.rows.append(_row(held, positions, by_position, count, "abs", f"{positions.count:,} positions"))
        section.rows.append(_many(held, positions, by_position, many))
    section.notes.append(
        "The key sums of a grouping do not depend on the query, so dualform keeps them after the first question; the "
        "peers have no notion of them, and score every slot for each question."
    )
    return section


def _ask(held: Contest, groups: Groups, right: oracle.Sums, count: int, score: Literal["dot", "abs"]) -> Any:
    queries, absolute = held.data.queries[:count], score == "abs"
    expected = oracle.Sums(right.signed[:count], right.absolute[:count])

    def check(name: str, answer: Any) -> tuple[str, str]:
        if contest.ours(name):
            relative = ABSOLUTE if absolute else EXACT
            return oracle.wrong_sums(expected, absolute, answer.sums, relative), ""
        return oracle.wrong_sums(expected, absolute, answer, PEERS), ""

    return held.ask(
        f"{score} sums by {groups.by}",
        count,
        {OURS: partial(held.engine.group_sum, held.data.layer, queries, groups.by, score=score)},
        lambda peer: peer.sums(queries, groups, absolute),
        check,
    )


def _row(held: Contest, groups: Groups, right: oracle.Sums, count: int, score: Literal["dot", "abs"], by: str) -> Row:
    word = "absolute" if score == "abs" else score
    cells = _ask(held, groups, right, count, score)
    return against_peers(f"{word} sums by {by}, {asked(count)}", f"{word}, {by}, {count}", cells, None)


def _many(held: Contest, positions: Groups, right: oracle.Sums, count: int) -> Row:
    """Absolute sums of many queries: a target of its own, whatever peers take."""
    cells = _ask(held, positions, right, count, "abs")
    question = f"absolute sums by {positions.count:,} positions, {asked(count)}"
    target = Target("at most", MANY_SECONDS, "s") if count == MANY else None
    return Row(question, cells, target=target, short=f"absolute, {positions.count:,} positions, {count}")


def _signed(held: Contest, groups: Groups, right: oracle.Sums) -> Row:
    """After the first question: how many times faster than the fastest peer."""
    cells: Mapping[str, Cell] = _ask(held, groups, right, 1, "dot")
    question = "sums by dataset and label, 1 query, after the first"
    target = Target("at least", 1000)
    fastest, seconds = fastest_peer(cells), cells[OURS].seconds
    if fastest is None or seconds is None:
        return Row(question, cells, target=target, short="dot, 1")
    name, beside = fastest
    return Row(question, cells, f"fastest peer: {name}", beside, beside / seconds, target, "dot, 1")


def _first_time(held: Contest, right: oracle.Sums) -> tuple[Cell, str]:
    """On engines that were asked nothing yet, the keys already read from disk."""
    fresh = Fresh(held.plan.memory, held.plan.backend)
    fresh.read()
    measured, answer = fresh.measure(
        lambda engine: engine.group_sum(held.data.layer, held.data.queries[:1], BY), min(3, held.plan.repeats)
    )
    assert isinstance(answer, dualform.GroupSums)
    timing = Timing.of(measured)
    wrong = oracle.wrong_sums(oracle.Sums(right.signed[:1], right.absolute[:1]), False, answer.sums, EXACT)
    return Cell(timing.seconds, timing.best, timing.repeats, wrong=wrong), ""
