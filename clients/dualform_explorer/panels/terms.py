"""What adds up to the outputs: the initial weights, the bias, and what each group of slots brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo, Status
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, query_of
from dualform_explorer.groups import MOST_GROUPS, hue_of, name_of
from dualform_explorer.labels import label_names
from dualform_explorer.numbers import decimals
from dualform_explorer.output_layer import MOST_OUTPUTS, output_layer
from dualform_explorer.questions import where
from dualform_explorer.state import State


@dataclass(frozen=True)
class Term:
    kind: str
    """"group", "initial", "bias", "unrecorded change", "residual", "rest" (of the groups that are not shown) or
    "output".
    """
    said: tuple[Any, ...]
    """The values of a group's columns, or what else is to be said of the term."""
    name: str
    """What a group's label is called."""
    values: tuple[float, ...]
    """Along each output that is shown."""
    count: int | None = None
    """Slots."""
    hue: int = 0


@dataclass(frozen=True)
class TermsPanel:
    layer: str
    network: bool
    outputs: tuple[tuple[int, str], ...]
    """Those that are shown: number and name."""
    total: int
    """How many the layer has."""
    terms: tuple[Term, ...]
    largest: float
    """The size of the largest term of a group, or of the initial weights or the bias."""
    decimals: int
    """Places behind the point that numbers of this size are shown with."""
    residual: float
    """The largest over all outputs: what the terms miss of the output."""
    unexplained: float | None
    """The largest difference between the network's own output as its training ended and what the record makes of it."""
    by: tuple[str, ...]
    initial: bool
    """Whether W_0 and the bias are part of the page's output."""
    status: Status


def terms_panel(memory: Answers, info: MemoryInfo, state: State) -> TermsPanel:
    examples = examples_of(memory, info, state.query_set)
    found = output_layer(memory, info, examples)
    layer = state.layer if found is None else found.name
    query = query_of(memory, info, state, layer)
    answer = memory.contributions(layer, query, state.by, where(info, state), state.at, state.inexact)
    names = label_names(memory, info)
    own, output = answer.sums[0], answer.output[0]
    if not state.initial:
        output = (
            output - answer.initial[0] - answer.bias - answer.unrecorded_change[0]
        )  # what slots brought, as `output` has it
    label = examples.label(state.row) if found is not None else None
    shown = _shown(output, label)
    order = np.argsort(-np.abs(own).max(axis=1, initial=0.0), kind="stable")[:MOST_GROUPS]
    order = np.sort(order)
    rest = np.setdiff1d(np.arange(len(own)), order)
    groups = [
        Term(
            "group",
            answer.groups[place],
            name_of(names, state.by, answer.groups[place]),
            _row(own[place], shown),
            int(answer.counts[place]),
            hue_of(info, state.by, answer.groups[place]),
        )
        for place in order.tolist()
    ]
    if len(rest):
        more = (f"{len(rest)} more",)
        groups.append(Term("rest", more, "", _row(own[rest].sum(axis=0), shown), int(answer.counts[rest].sum())))
    others = [
        Term("initial", ("W₀",), "", _row(answer.initial[0], shown)),
        Term("bias", ("bias",), "", _row(answer.bias, shown)),
    ]
    if np.any(answer.unrecorded_change[0]):
        others.append(Term("unrecorded_change", ("outside the record",), "", _row(answer.unrecorded_change[0], shown)))
    ends = [
        Term("residual", ("residual",), "", _row(answer.residual[0], shown)),
        Term("output", ("output",), "", _row(output, shown)),
    ]
    sizes = [abs(value) for term in (*others, *groups) for value in term.values]
    return TermsPanel(
        layer=layer,
        network=found is not None,
        outputs=tuple((number, names.of(number) if found is not None else "") for number in shown),
        total=len(output),
        terms=(*others, *groups, *ends),
        largest=max(sizes, default=0.0),
        decimals=decimals(max(sizes, default=0.0), 4),
        residual=float(np.abs(answer.residual[0]).max(initial=0.0)),
        unexplained=None if answer.unexplained is None else float(np.abs(answer.unexplained[0]).max(initial=0.0)),
        by=state.by,
        initial=state.initial,
        status=answer.status,
    )


def _shown(output: np.ndarray, label: int | None) -> list[int]:
    if len(output) <= MOST_OUTPUTS:
        return list(range(len(output)))
    chosen = set(np.argsort(-output, kind="stable")[:MOST_OUTPUTS].tolist())
    return sorted(chosen if label is None else chosen | {label})


def _row(values: np.ndarray, shown: list[int]) -> tuple[float, ...]:
    return tuple(float(values[number]) for number in shown)
