"""Where a page's links lead: to other states of it, and to what slots may be grouped by."""

from __future__ import annotations

from typing import Any

from dualform.answers import MemoryInfo
from dualform_explorer.reading import layer_of
from dualform_explorer.standard_columns import OF_PLACE
from dualform_explorer.state import State


def link(state: State, **changes: Any) -> str:
    """To the page of a state, with some fields changed."""
    return f"explore?{state.query(**changes)}"


def item_link(memory: str, probe: str, row: int, layer: str, by: tuple[str, ...], among: str = "all") -> str:
    return f"explore?{State(memory, probe, row, layer, by, among=among).query()}"


def groupings(info: MemoryInfo, state: State) -> list[tuple[str, ...]]:
    """What slots may be grouped by with a click: columns that say something of them, and the page's own."""
    layer = layer_of(info, state.layer)
    columns = [] if layer is None else info.columns[layer.space]
    found: list[tuple[str, ...]] = [(name,) for name in columns if name not in OF_PLACE]
    if len(info.datasets) > 1:
        found.insert(0, ("dataset", "label"))
    return found if state.by in found else [*found, state.by]
