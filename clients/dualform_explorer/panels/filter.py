"""The filter: as SQL, how many slots it keeps, and the groups that can be added to it."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import query_of
from dualform_explorer.groups import MOST_GROUPS, Group, groups_of
from dualform_explorer.questions import where_before
from dualform_explorer.reading import layer_of
from dualform_explorer.state import State


@dataclass(frozen=True)
class FilterPanel:
    sql: str
    """One condition; empty without a filter."""
    matching: int
    """Slots of the layer that stay; 0 where there is trouble."""
    trouble: str
    """What is wrong with the filter, which can still be cleared; empty if nothing is."""
    slots: int
    """Of the layer."""
    columns: dict[str, str]
    """Of the layer's slots, with their types."""
    groups: tuple[tuple[Group, ...], ...]
    """What may be left out: datasets, where there are several, and labels."""
    steps: int
    """Recorded ones."""


def filter_panel(memory: Answers, info: MemoryInfo, state: State) -> FilterPanel:
    layer = layer_of(info, state.layer)
    columns = {} if layer is None else dict(info.columns[layer.space])
    try:
        return _asked(memory, info, state, columns)
    except DualformError as error:  # of a layer without an answer: what is set can be cleared all the same
        slots = 0 if layer is None else layer.slots
        return FilterPanel("", 0, error.message, slots, columns, (), info.steps)


def _asked(memory: Answers, info: MemoryInfo, state: State, columns: dict[str, str]) -> FilterPanel:
    query = query_of(memory, info, state)
    offered = [by for by in ("dataset", "label") if by in columns and (by != "dataset" or len(info.datasets) > 1)]
    sums = {by: memory.group_sum(state.layer, query, by=by, k=MOST_GROUPS) for by in offered}
    whole = memory.group_sum(state.layer, query, by="dataset", k=MOST_GROUPS)
    condition, matching, trouble = None, whole.scan.slots_matching, ""
    try:
        if (condition := where_before(info, state)) is not None:
            matching = memory.group_sum(state.layer, query, by="dataset", where=condition).scan.slots_matching
    except (BadInput, NotFound) as error:
        matching, trouble = 0, error.message
    return FilterPanel(
        sql=condition or "",
        matching=matching,
        trouble=trouble,
        slots=whole.scan.slots_scanned,
        columns=columns,
        groups=tuple(groups_of(memory, info, (by,), sums[by]) for by in offered),
        steps=info.steps,
    )
