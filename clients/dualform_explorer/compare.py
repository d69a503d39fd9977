"""Two pages side by side: two examples, two layers, two steps, two filters or two memories, and how they differ.

./compare?a.item=…&b.item=…     the parameters of a page of one example, once with a. and once with b. before them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo
from dualform_explorer.panels.answer import (
    AnswerPanel,
    OutputPanel,
    Part,
    answer_of,
    answer_panel,
    default_pair,
    output_panel,
)
from dualform_explorer.panels.example import QueryPanel, query_panel
from dualform_explorer.state import Params, State, query_string
from dualform_explorer.view import View

SIDES = ("a", "b")
_REST = ("rest",)


def params_of(params: Params, side: str) -> list[tuple[str, str]]:
    """The parameters of one side, as its own page has them."""
    return [(name.partition(".")[2], value) for name, value in params if name.startswith(f"{side}.")]


def compare_link(one: State, other: State) -> str:
    states = zip(SIDES, (one, other), strict=True)
    return "compare?" + query_string([(f"{side}.{key}", own) for side, state in states for key, own in state.params()])


def default_sides(info: MemoryInfo, state: State) -> tuple[State, State]:
    """A page and the one to compare it with by default: without its filter, or at the end of training or half way. The
    earlier step is at the left.
    """
    if state.masked:
        return state, replace(state, chips=(), where="", initial=True)
    if state.at is not None:
        return state, replace(state, at=None)
    return replace(state, at=info.steps // 2), state


@dataclass(frozen=True)
class ComparedSide:
    side: View
    query: QueryPanel
    answer: AnswerPanel | None
    output: OutputPanel


@dataclass(frozen=True)
class ComparedPart:
    part: Part
    """The part of whichever side has it."""
    one: float | None
    other: float | None
    """None if that side has no such part."""

    @property
    def difference(self) -> float:
        return (self.other or 0.0) - (self.one or 0.0)


@dataclass(frozen=True)
class ComparePanel:
    sides: tuple[ComparedSide, ComparedSide]
    parts: tuple[ComparedPart, ...]
    """Parts of the margin at the end of training of the first side's example; empty if either side has no answer, or
    their outputs differ."""
    why: str = ""
    """Why `parts` is empty."""

    @property
    def largest(self) -> float:
        return max((abs(own.difference) for own in self.parts), default=0.0)


def compare_panel(one: View, other: View) -> ComparePanel:
    first, second = _compared(one), _compared(other)
    if first.answer is None or second.answer is None or one.outputs is None or other.outputs is None:
        return ComparePanel((first, second), (), "A side has no layer that gives the network's outputs.")
    if first.output.total != second.output.total:
        return ComparePanel((first, second), (), "The sides have different numbers of outputs.")
    if why := first.answer.why_no_parts or second.answer.why_no_parts:
        return ComparePanel((first, second), (), why)
    if first.answer.by != second.answer.by:
        why = f"The left side is grouped by {first.answer.by[0]}, the right side by {second.answer.by[0]}."
        return ComparePanel((first, second), (), why)
    pair = _pair(one, first.answer)
    right = answer_of(other, other.outputs, pair)
    left = answer_of(one, one.outputs, pair, _groups(right))
    right = answer_of(other, other.outputs, pair, _groups(left))
    first, second = replace(first, answer=left), replace(second, answer=right)
    return ComparePanel((first, second), _parts(left, right))


def _compared(side: View) -> ComparedSide:
    return ComparedSide(side, query_panel(side), answer_panel(side), output_panel(side))


def _pair(side: View, answer: AnswerPanel) -> tuple[int, int | None]:
    """The outputs that are compared: those of the trained network for the side's example, at whatever steps and under
    whatever filters the sides are. A margin that the reader chose is kept.
    """
    if answer.asked and answer.other is not None:
        return answer.predicted[0], answer.other[0]
    query = side.query(answer.layer)
    outputs = side.memory.output(answer.layer, query, None, None, side.state.inexact)
    return default_pair(np.asarray(outputs, dtype=np.float64)[0], answer.label)


def _groups(answer: AnswerPanel) -> list[tuple[Any, ...]]:
    return [part.said for part in answer.parts if part.kind == "group"]


def _parts(left: AnswerPanel, right: AnswerPanel) -> tuple[ComparedPart, ...]:
    """Groups that the other side did not compute are added to the remaining groups of both sides."""
    answers, parts = (left, right), (_by_name(left), _by_name(right))
    sums: tuple[dict[Any, float], dict[Any, float]] = ({}, {})
    for own, there, other, lacking in zip(sums, parts, parts[::-1], answers[::-1], strict=True):
        for key, part in there.items():
            known = part.kind != "group" or key in other or lacking.most_attended is None
            name = key if known else _REST
            own[name] = own.get(name, 0.0) + part.value
    said = {**parts[1], **parts[0]}
    if _REST in said:
        said[_REST] = replace(said[_REST], said=("all others",))
    keys = dict.fromkeys((*sums[0], *sums[1]))
    found = [ComparedPart(said[key], sums[0].get(key), sums[1].get(key)) for key in keys]
    return tuple(sorted(found, key=lambda own: own.part.kind == "rest"))


def _by_name(answer: AnswerPanel) -> dict[Any, Part]:
    """The remaining groups differ between two sides, and are compared as one part."""
    return {_REST if part.kind == "rest" else (part.kind, *part.said): part for part in answer.parts}
