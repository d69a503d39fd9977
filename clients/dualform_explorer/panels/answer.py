"""Why the network predicts what it does: the margin of its prediction, as a sum of what the training brought."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo, Status
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, query_of
from dualform_explorer.groups import hue_of, name_of
from dualform_explorer.labels import label_names
from dualform_explorer.output_layer import output_layer
from dualform_explorer.questions import where
from dualform_explorer.state import State

_MOST = 8
"""Groups that have a bar of their own."""


@dataclass(frozen=True)
class Part:
    kind: str
    """"initial", "bias", "unrecorded", "group" or "rest"."""
    said: tuple[Any, ...]
    """The values of a group's columns, or what the part is."""
    name: str
    """What a group's label is called."""
    value: float
    begin: float
    """The sum of the parts before it."""
    hue: int = 0

    @property
    def end(self) -> float:
        return self.begin + self.value


@dataclass(frozen=True)
class AnswerPanel:
    layer: str
    """That gives the network's outputs; empty where none does."""
    predicted: tuple[int, str] = (0, "")
    """The largest output, and its name."""
    other: tuple[int, str] | None = None
    """The label where the prediction is wrong, else the second largest output; None of a single output."""
    label: int | None = None
    margin: float = 0.0
    by: tuple[str, ...] = ()
    """The column that groups slots."""
    parts: tuple[Part, ...] = ()
    status: Status | None = None

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.label != self.predicted[0]

    @property
    def largest(self) -> float:
        return max((abs(part.value) for part in self.parts), default=0.0)

    @property
    def ends(self) -> tuple[float, float]:
        """Between which all sums lie."""
        sums = [0.0, *(part.end for part in self.parts)]
        return min(sums), max(sums)


def answer_panel(memory: Answers, info: MemoryInfo, state: State) -> AnswerPanel:
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    if found is None:
        return AnswerPanel("")
    query, by = query_of(memory, info, state, found.name), state.by[:1]
    answer = memory.contributions(found.name, query, by, where(info, state), state.at, state.inexact)
    fixed = [("initial", "initial weights", answer.initial[0]), ("bias", "bias", answer.bias)]
    fixed.append(("unrecorded", "outside the record", answer.unrecorded_change[0]))
    output, groups = answer.output[0], answer.sums[0]
    if not state.initial:
        output = output - sum(own for _, _, own in fixed)
        fixed = []
    label = examples.label(state.row)
    if label is not None and label >= len(output):
        label = None
    order = np.argsort(-output, kind="stable")
    top = int(order[0])
    other = None if len(output) < 2 else int(order[1]) if label is None or label == top else label

    def along(values: np.ndarray) -> Any:
        return values[..., top] - (0.0 if other is None else values[..., other])

    values, names = along(groups), label_names(memory, info)
    chosen = np.sort(np.argsort(-np.abs(values), kind="stable")[:_MOST]).tolist()
    listed: list[tuple[str, tuple[Any, ...], str, float, int]] = [
        (kind, (words,), "", float(along(own)), 0) for kind, words, own in fixed if along(own)
    ]
    for place in chosen:
        group = answer.groups[place]
        hue = hue_of(info, by, group)
        listed.append(("group", group, name_of(names, by, group), float(values[place]), hue))
    if len(values) > len(chosen):
        rest = float(np.delete(values, chosen).sum())
        listed.append(("rest", (f"{len(values) - len(chosen)} more",), "", rest, 0))
    begins = accumulate((own[3] for own in listed), initial=0.0)
    return AnswerPanel(
        layer=found.name,
        predicted=(top, names.of(top)),
        other=None if other is None else (other, names.of(other)),
        label=label,
        margin=float(along(output)),
        by=by,
        parts=tuple(
            Part(kind, said, name, value, begin, hue)
            for (kind, said, name, value, hue), begin in zip(listed, begins, strict=False)
        ),
        status=answer.status,
    )
