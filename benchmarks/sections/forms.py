"""Top-10 by each form of the compiled loops, beside NumPy's float32 scan: what other processors get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dualform
from benchmarks import oracle
from benchmarks.contest import cell
from benchmarks.data import load
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target
from benchmarks.sections.topk import K, asked, first
from benchmarks.timing import race
from dualform import kernels

SCAN = "float32 scan"
DEFAULT = Target("at most", 1.0)
"""Of every form that is the default where the processor runs it."""


def run(plan: Plan) -> Section:
    section = Section("forms", "Forms of the compiled loops")
    if not kernels.forms():
        section.notes.append("The loops are not compiled.")
    data = load(plan)
    right = oracle.best(data.keys, data.queries, K)[0]
    with (
        dualform.open(plan.memory, backend="int8") as screened,
        dualform.open(plan.memory, backend="numpy") as scanned,
    ):
        for form in kernels.forms():
            kernels.use(form)
            for count in plan.queries[:2]:
                queries, expected = data.queries[:count], first(right, count)

                def check(_: str, answer: Any, expected: Any = expected) -> tuple[str, str]:
                    return oracle.wrong_exactly(expected, answer.slots, answer.scores), ""

                contestants: dict[str, Callable[[], Any]] = {
                    OURS: partial(screened.topk, data.layer, queries, K),
                    SCAN: partial(scanned.topk, data.layer, queries, K),
                }
                ran = race(contestants, plan.repeats, plan.patience)
                cells = {name: cell(name, one, check) for name, one in ran.items()}
                ours, beside = cells[OURS].seconds, cells[SCAN].seconds
                ratio = None if ours is None or not beside else ours / beside
                target = DEFAULT if kernels.fast() else None
                short = f"{form}, {asked(count)}"
                section.rows.append(Row(f"top-10, {short}", cells, SCAN, beside, ratio, target, short))
        if kernels.forms():
            kernels.use(None)
    return section
