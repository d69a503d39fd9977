"""What the questions of a page have in common: its query, score and mask, as the memory's methods take them."""

from __future__ import annotations

from typing import Any

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.complete_columns import complete_columns
from dualform_explorer.examples import query_of
from dualform_explorer.state import State


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


def where(info: MemoryInfo, state: State) -> str | None:
    return state.mask(complete_columns(info))


def where_before(info: MemoryInfo, state: State) -> str | None:
    return state.mask_before(complete_columns(info))


def where_unmasked(state: State) -> str | None:
    """All slots as of the page's step."""
    return None if state.at is None else f"step < {state.at}"
