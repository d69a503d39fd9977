"""The groups of slots that a page shows, and what its questions about scores have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Contributions, GroupKey, GroupSums, MemoryInfo
from dualform.answers.contributions import estimated_seconds
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_explorer.examples import LabelNames, label_names, layer_of, query_of
from dualform_explorer.filter import OF_PLACE, Chip, alike, complete_columns, where_of
from dualform_explorer.state import State

HUES = 10
MOST_GROUPS = 24


@dataclass(frozen=True)
class Group:
    columns: tuple[str, ...]
    values: tuple[Any, ...]
    """Of these columns; None for the slots without one."""
    name: str
    """What its label is called; empty where there is no such name."""
    hue: int
    """Of its colour, alike on all pages of a memory: 0 to HUES - 1."""
    sum: float
    """Of the scores of its slots."""
    count: int
    """Its slots."""

    @property
    def key(self) -> str:
        """Its values in one text, for whoever reads the page by program."""
        return "/".join("" if value is None else str(value) for value in self.values)


def groups_of(memory: Answers, info: MemoryInfo, by: Sequence[str], sums: GroupSums) -> tuple[Group, ...]:
    """The groups of one query's answer, in the order of their values where those are few, else the largest first."""
    names = label_names(memory, info) if "label" in by else LabelNames()
    ranked = sums.ranked()
    if (sums.total or len(sums.groups)) <= MOST_GROUPS:
        place = {group: number for number, group in enumerate(sums.groups)}
        ranked.sort(key=lambda own: place[own[0]])
    return tuple(
        Group(tuple(by), tuple(map(alike, values)), name_of(names, by, values), hue_of(info, by, values), total, count)
        for values, total, count in ranked
    )


@dataclass(frozen=True)
class GroupRow:
    """A group with and without the page's mask."""

    group: Group
    """As the mask leaves it; without the mask where it is `gone`."""
    unmasked: float | None
    """The sum without the mask; None where there is no mask, or the group is not among the largest then."""
    gone: bool = False
    """Whether the mask leaves none of its slots."""


def rows_of(masked: Sequence[Group], whole: Sequence[Group]) -> tuple[GroupRow, ...]:
    """`whole`: without the mask; none where there is no mask. Where all that is left is among those, they keep their
    places.
    """
    left, was = {own.values: own for own in masked}, {own.values: own for own in whole}
    if 0 < len(whole) <= MOST_GROUPS and left.keys() <= was.keys():
        return tuple(GroupRow(left.get(own.values, own), own.sum, own.values not in left) for own in whole)
    return tuple(GroupRow(own, was[own.values].sum if own.values in was else None) for own in masked)


def name_of(names: LabelNames, by: Sequence[str], values: Sequence[Any]) -> str:
    """What the label of a group is called."""
    said = dict(zip(by, values, strict=True))
    dataset = (said["dataset"],) if "dataset" in said else ()
    return names.of(said["label"], *dataset) if "label" in said else ""


def hue_of(info: MemoryInfo, by: Sequence[str], values: Sequence[Any]) -> int:
    """By its first column."""
    column, value = by[0], values[0]
    if column == "dataset" and value in (known := sorted(info.datasets)):
        return known.index(value) % HUES
    return value % HUES if isinstance(value, int) else crc32(str(value).encode()) % HUES


def groupings_of(info: MemoryInfo, state: State) -> list[tuple[str, ...]]:
    """What slots may be grouped by with a click: columns that say something of them, and the state's own."""
    layer = layer_of(info, state.layer)
    columns = [] if layer is None else info.columns[layer.space]
    found: list[tuple[str, ...]] = [(name,) for name in columns if name not in OF_PLACE]
    if len(info.datasets) > 1:
        found.insert(0, ("dataset", "label"))
    return found if state.by in found else [*found, state.by]


_MOST_SHARED = 24
"""Groups that contributions are asked for where each takes a run of the training's updates; of more, the largest."""
_MOST_SUMMED = 1000
"""Where they are sums."""
_LARGEST = 20


@dataclass(frozen=True)
class Terms:
    """The terms of a layer's output for one query. Shapes: G groups, d_out."""

    answer: Contributions
    """Its groups may be others: of it are the terms that no group has."""
    groups: tuple[GroupKey, ...]
    sums: NDArray[np.float64]
    """float64[G, d_out]"""
    counts: NDArray[np.int64]
    others: int = 0
    """How many groups are left out: those with the smallest sums of attention, in absolute value."""
    other_sum: NDArray[np.float64] | None = None
    """float64[d_out] of all of these."""
    other_count: int = 0

    def output(self, initial: bool) -> NDArray[np.float64]:
        """float64[d_out]: with or without the initial weights, the bias and what is outside the record."""
        output = np.asarray(self.answer.output[0])
        return (
            output if initial else output - self.answer.initial[0] - self.answer.bias - self.answer.unrecorded_change[0]
        )


def terms_of(memory: Answers, info: MemoryInfo, state: State, layer: str, by: tuple[str, ...]) -> Terms:
    """Of a grouping with many groups, those that have the largest attention, and all others as one."""
    query, mask = query_of(memory, info, state, layer), where(info, state)

    def asked(by: tuple[str, ...], mask: str | None) -> Contributions:
        return memory.contributions(layer, query, by, mask, state.at, state.inexact)

    most = _MOST_SUMMED if info.optimizer == "SGD" else _MOST_SHARED

    def total(sums: GroupSums) -> int:
        return sums.total or len(sums.groups)

    def largest() -> GroupSums:
        return memory.group_sum(layer, query, by=by, where=where_before(info, state), score="abs", k=_LARGEST)

    # A filter leaves no more groups than there are, which other parts of the page ask for, too.
    if total(memory.group_sum(layer, query, by=by, k=MOST_GROUPS)) <= most or total(largest()) <= most:
        try:
            answer = asked(by, mask)
        except BadInput as error:
            if error.field != "by":
                raise
        else:
            return Terms(answer, answer.groups, answer.sums[0], answer.counts)
    largest_groups = largest()
    chosen = [group for group, _, _ in largest_groups.ranked()]
    condition = where_of([Chip.of(True, by, group) for group in chosen])
    own = asked(by, condition if mask is None else f"({mask}) AND ({condition})")
    whole = asked(("dataset",), mask)
    others = total(largest_groups) - len(own.groups)
    rest = whole.sums[0].sum(axis=0) - own.sums[0].sum(axis=0)
    return Terms(whole, own.groups, own.sums[0], own.counts, others, rest, int(whole.counts.sum() - own.counts.sum()))


def scored(memory: Answers, info: MemoryInfo, state: State, masked: bool = True) -> dict[str, Any]:
    """Of questions about the scores in the page's layer."""
    asked: dict[str, Any] = {
        "layer": state.layer,
        "queries": query_of(memory, info, state),
        "where": where_before(info, state) if masked else where_unmasked(state),
        "score": state.score,
    }
    if state.score == "contribution":
        asked |= {"target": state.target, "at_step": state.at, "allow_inexact": state.inexact}
    return asked


def expected_seconds(panel: str, info: MemoryInfo, state: State) -> float:
    """About how long a panel's contributions take the memory on one core; 0 of a panel without any."""
    contributes = state.score == "contribution" and panel in ("sums", "slots", "samples", "ranks", "steps")
    whole = panel in ("answer", "terms")
    layer = layer_of(info, (info.output_layer or state.layer) if whole else state.layer)
    if panel == "samples" and state.within is None:
        return 0.0
    if info.optimizer == "SGD" or layer is None or not (whole or contributes):
        return 0.0
    parts = max(1, len(layer.views))
    d_in, d_out = layer.d_in // parts, layer.d_out // parts
    # Of labels that are too many, some are asked for alone, and then all; each with what a filter leaves of the layer.
    runs = (2 if whole and layer.d_out > _MOST_SHARED else 1) * (2 if state.masked else 1)
    return runs * estimated_seconds(layer.slots, info.steps, d_in, d_out, d_out if whole else 2)


def where(info: MemoryInfo, state: State) -> str | None:
    return state.mask(complete_columns(info))


def where_before(info: MemoryInfo, state: State) -> str | None:
    return state.mask_before(complete_columns(info))


def where_unmasked(state: State) -> str | None:
    """All slots as of the page's step."""
    return None if state.at is None else f"step < {state.at}"
