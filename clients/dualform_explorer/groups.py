"""The groups of slots on a page, and the common arguments of its questions about scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Contributions, GroupKey, GroupSums, MemoryInfo
from dualform.answers.outputs import estimated_seconds
from dualform.errors import BadInput
from dualform_explorer.examples import LabelNames
from dualform_explorer.filter import OF_PLACE, Chip, alike, where_of
from dualform_explorer.state import State, layer_of
from dualform_explorer.view import Snapshot, View

HUES = 10
MOST_GROUPS = 24


@dataclass(frozen=True)
class Group:
    columns: tuple[str, ...]
    values: tuple[Any, ...]
    """The values of the columns; None for slots without one."""
    name: str
    """The name of its label; empty if it has none."""
    hue: int
    """The number of its colour, 0 to HUES - 1, the same on all pages of a memory."""
    sum: float
    """The sum of its slots' scores."""
    count: int
    """The number of its slots."""

    @property
    def key(self) -> str:
        """Its values as one text, for programs that read the page."""
        return "/".join("" if value is None else str(value) for value in self.values)


def groups_of(snapshot: Snapshot, by: Sequence[str], sums: GroupSums) -> tuple[Group, ...]:
    """The groups of one query's answer. A few groups are ordered by value, many by size of the sum."""
    names = snapshot.names if "label" in by else LabelNames()
    ranked = sums.ranked()
    if (sums.total or len(sums.groups)) <= MOST_GROUPS:
        place = {group: number for number, group in enumerate(sums.groups)}
        ranked.sort(key=lambda own: place[own[0]])
    return tuple(
        Group(
            tuple(by),
            tuple(map(alike, values)),
            name_of(names, by, values),
            hue_of(snapshot.info, by, values),
            total,
            count,
        )
        for values, total, count in ranked
    )


@dataclass(frozen=True)
class GroupRow:
    """A group with and without the page's filter."""

    group: Group
    """Its sum under the filter; if it is `gone`, its sum without the filter."""
    unmasked: float | None
    """The sum without the filter. None if the page has no filter, or the group is then not among the largest."""
    gone: bool = False
    """Whether the filter removes all of its slots."""


def rows_of(masked: Sequence[Group], whole: Sequence[Group]) -> tuple[GroupRow, ...]:
    """`whole`: the groups without the filter; empty if the page has none. Groups keep their order from `whole` if it
    contains all that are left.
    """
    left, was = {own.values: own for own in masked}, {own.values: own for own in whole}
    if 0 < len(whole) <= MOST_GROUPS and left.keys() <= was.keys():
        return tuple(GroupRow(left.get(own.values, own), own.sum, own.values not in left) for own in whole)
    return tuple(GroupRow(own, was[own.values].sum if own.values in was else None) for own in masked)


def name_of(names: LabelNames, by: Sequence[str], values: Sequence[Any]) -> str:
    """The name of a group's label."""
    said = dict(zip(by, values, strict=True))
    dataset = (said["dataset"],) if "dataset" in said else ()
    return names.of(said["label"], *dataset) if "label" in said else ""


def hue_of(info: MemoryInfo, by: Sequence[str], values: Sequence[Any]) -> int:
    """The hue of a group, from its first column."""
    column, value = by[0], values[0]
    if column == "dataset" and value in (known := sorted(info.datasets)):
        return known.index(value) % HUES
    return value % HUES if isinstance(value, int) else crc32(str(value).encode()) % HUES


def groupings_of(info: MemoryInfo, state: State) -> list[tuple[str, ...]]:
    """Columns offered for grouping, and the page's own."""
    layer = layer_of(info, state.layer)
    columns = [] if layer is None else info.columns[layer.space]
    found: list[tuple[str, ...]] = [(name,) for name in columns if name not in OF_PLACE]
    if len(info.datasets) > 1:
        found.insert(0, ("dataset", "label"))
    return found if state.by in found else [*found, state.by]


_MOST_SHARED = 24
"""The most groups for which contributions are asked if each needs a run of the training's updates. Of more, the
largest."""
_MOST_SUMMED = 1000
"""The most groups if contributions are sums."""
_LARGEST = 20


@dataclass(frozen=True)
class Terms:
    """The terms of a layer's output for one query. Shapes: G groups, d_out."""

    answer: Contributions
    """The answer with all other terms. It may have different groups."""
    groups: tuple[GroupKey, ...]
    sums: NDArray[np.float64]
    """float64[G, d_out]"""
    counts: NDArray[np.int64]
    others: int = 0
    """The number of groups left out: those with the smallest absolute sums of attention."""
    other_sum: NDArray[np.float64] | None = None
    """float64[d_out]: the sum of the groups left out."""
    other_count: int = 0

    def output(self, initial: bool) -> NDArray[np.float64]:
        """float64[d_out]: the output, with or without the initial weights, the bias and the unrecorded change."""
        output = np.asarray(self.answer.output[0])
        return (
            output if initial else output - self.answer.initial[0] - self.answer.bias - self.answer.unrecorded_change[0]
        )


def terms_of(
    view: View,
    layer: str,
    by: tuple[str, ...],
    named: Collection[tuple[Any, ...]] = (),
) -> Terms:
    """The terms of the groups with the largest attention, those of the groups `named`, and one for all other groups."""
    query, mask = view.query(layer), view.where

    def asked(by: tuple[str, ...], mask: str | None) -> Contributions:
        return view.memory.contributions(layer, query, by, mask, view.state.at, view.state.inexact)

    most = _MOST_SUMMED if view.info.optimizer == "SGD" else _MOST_SHARED

    def total(sums: GroupSums) -> int:
        return sums.total or len(sums.groups)

    def largest() -> GroupSums:
        return view.memory.group_sum(layer, query, by=by, where=view.where_before, score="abs", k=_LARGEST)

    # A filter leaves no more groups than there are. Other panels ask this question too.
    if total(view.memory.group_sum(layer, query, by=by, k=MOST_GROUPS)) <= most or total(largest()) <= most:
        try:
            answer = asked(by, mask)
        except BadInput as error:
            if error.field != "by":
                raise
        else:
            return Terms(answer, answer.groups, answer.sums[0], answer.counts)
    largest_groups = largest()
    chosen = dict.fromkeys([*(group for group, _, _ in largest_groups.ranked()), *named])
    condition = where_of([Chip.of(True, by, group) for group in chosen])
    own = asked(by, condition if mask is None else f"({mask}) AND ({condition})")
    whole = asked(("dataset",), mask)
    others = total(largest_groups) - len(own.groups)
    rest = whole.sums[0].sum(axis=0) - own.sums[0].sum(axis=0)
    return Terms(whole, own.groups, own.sums[0], own.counts, others, rest, int(whole.counts.sum() - own.counts.sum()))


def expected_seconds(panel: str, view: View) -> float:
    """The approximate time for a panel's contributions on one core, in seconds; 0 for other panels."""
    info, state = view.info, view.state
    contributes = state.score == "contribution" and panel in ("sums", "slots", "samples", "ranks", "steps")
    whole = panel in ("answer", "terms")
    layer = layer_of(info, (info.output_layer or state.layer) if whole else state.layer)
    if panel == "samples" and state.within is None:
        return 0.0
    if info.optimizer == "SGD" or layer is None or not (whole or contributes):
        return 0.0
    parts = max(1, len(layer.views))
    d_in, d_out = layer.d_in // parts, layer.d_out // parts
    # Of too many labels, some are asked for separately and then all together, each also under the filter.
    runs = (2 if whole and layer.d_out > _MOST_SHARED else 1) * (2 if state.masked else 1)
    return runs * estimated_seconds(layer.slots, info.steps, d_in, d_out, d_out if whole else 2)
