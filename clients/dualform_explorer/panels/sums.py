"""How much of the attention goes to each group of training datapoints (paper, figure 5)."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import MemoryInfo, Status
from dualform.methods import Answers
from dualform_explorer.groups import MOST_GROUPS, Group, GroupRow, groups_of, rows_of
from dualform_explorer.questions import scored
from dualform_explorer.state import State


@dataclass(frozen=True)
class SumsPanel:
    rows: tuple[GroupRow, ...]
    largest: float
    """The size of the largest sum of all, masked and not."""
    signed: bool
    """Whether any is below zero."""
    total: int
    """How many groups there are under the mask."""
    matching: int
    scanned: int
    status: Status | None


def sums_panel(memory: Answers, info: MemoryInfo, state: State) -> SumsPanel:
    sums = memory.group_sum(**scored(memory, info, state), by=state.by, k=MOST_GROUPS)
    groups = groups_of(memory, info, state.by, sums)
    whole: tuple[Group, ...] = ()
    if state.chips or state.where:
        answer = memory.group_sum(**scored(memory, info, state, masked=False), by=state.by, k=MOST_GROUPS)
        whole = groups_of(memory, info, state.by, answer)
    every = [group.sum for group in (*groups, *whole)]
    return SumsPanel(
        rows=rows_of(groups, whole),
        largest=max(map(abs, every), default=0.0),
        signed=min(every, default=0.0) < 0,
        total=sums.total or len(groups),
        matching=sums.scan.slots_matching,
        scanned=sums.scan.slots_scanned,
        status=sums.status,
    )
