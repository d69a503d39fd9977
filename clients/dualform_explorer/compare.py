"""Two pages side by side: two examples, two layers, two steps, two filters or two memories, and how they differ.

./compare?a.item=…&b.item=…     the parameters of a page of one example, once with a. and once with b. before them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.address import Params
from dualform_explorer.panels.answer import AnswerPanel, OutputPanel, Part, answer_panel, output_panel
from dualform_explorer.panels.example import QueryPanel, query_panel
from dualform_explorer.state import State, query_string

SIDES = ("a", "b")


def params_of(params: Params, side: str) -> list[tuple[str, str]]:
    """Those of one side, as its own page has them."""
    return [(name.partition(".")[2], value) for name, value in params if name.startswith(f"{side}.")]


def compare_link(one: State, other: State) -> str:
    states = zip(SIDES, (one, other), strict=True)
    return "compare?" + query_string([(f"{side}.{key}", own) for side, state in states for key, own in state.params()])


def another(info: MemoryInfo, state: State) -> State:
    """What a page is compared with where nothing else is said: without its filter, at its end, or half way."""
    if state.masked:
        return replace(state, chips=(), where="", initial=True)
    return replace(state, at=None if state.at is not None else info.steps // 2)


@dataclass(frozen=True)
class Side:
    memory: Answers
    info: MemoryInfo
    name: str
    """Of the memory."""
    state: State


@dataclass(frozen=True)
class ComparedSide:
    side: Side
    query: QueryPanel
    answer: AnswerPanel
    output: OutputPanel


@dataclass(frozen=True)
class ComparedPart:
    part: Part
    """Of the side that has it."""
    by: tuple[str, ...]
    one: float | None
    other: float | None
    """None where a side has no such part."""

    @property
    def difference(self) -> float:
        return (self.other or 0.0) - (self.one or 0.0)


@dataclass(frozen=True)
class ComparePanel:
    sides: tuple[ComparedSide, ComparedSide]
    parts: tuple[ComparedPart, ...]
    """Along the margin of the first side; empty where either side has no answer, or other outputs."""
    why: str = ""
    """Why there are no parts."""

    @property
    def largest(self) -> float:
        return max((abs(own.difference) for own in self.parts), default=0.0)


def compare_panel(one: Side, other: Side) -> ComparePanel:
    first, second = _compared(one), _compared(other)
    if not (first.answer.layer and second.answer.layer):
        return ComparePanel((first, second), (), "A side has no layer that gives the network's outputs.")
    if first.output.total != second.output.total:
        return ComparePanel((first, second), (), "The sides have different numbers of outputs.")
    pair = first.answer.predicted[0], None if first.answer.other is None else first.answer.other[0]
    second = replace(second, answer=answer_panel(other.memory, other.info, other.state, pair))
    left, right = _by_name(first.answer), _by_name(second.answer)
    parts = tuple(
        ComparedPart(
            left.get(key) or right[key],
            first.answer.by if key in left else second.answer.by,
            left[key].value if key in left else None,
            right[key].value if key in right else None,
        )
        for key in dict.fromkeys((*left, *right))
    )
    return ComparePanel((first, second), parts)


def _compared(side: Side) -> ComparedSide:
    own = (side.memory, side.info, side.state)
    return ComparedSide(side, query_panel(*own), answer_panel(*own), output_panel(*own))


def _by_name(answer: AnswerPanel) -> dict[Any, Part]:
    """The remaining groups of two sides are not the same ones, and are compared as what remains."""
    return {("rest",) if part.kind == "rest" else (part.kind, *part.said): part for part in answer.parts}
