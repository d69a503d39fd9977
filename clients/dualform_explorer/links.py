"""Where a page's links lead: to other states of it."""

from __future__ import annotations

from typing import Any

from dualform_explorer.state import State


def link(state: State, **changes: Any) -> str:
    """To the page of a state, with some fields changed."""
    return f"explore?{state.query(**changes)}"


def item_link(memory: str, query_set: str, row: int, layer: str, by: tuple[str, ...], among: str = "all") -> str:
    return f"explore?{State(memory, query_set, row, layer, by, among=among).query()}"
